"""What running turns record of themselves."""
