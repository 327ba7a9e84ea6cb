"""Request handlers, one module per concern; each offers a table from request code to function."""
