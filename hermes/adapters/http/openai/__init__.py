"""The OpenAI APIs: Responses, Conversations, Chat Completions, Models and Files."""
