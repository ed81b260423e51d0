"""The event streams of the web page: Markdown as nodes, and answers as they grow."""
