"""Who may send a request.

`browsers` refuses requests that a foreign web page could send, before anything else. `logins` finds
the token of a request, and `requests` has those that are open, so that they end with their token.
"""
