"""The Responses and Conversations APIs."""
