"""One typed struct per request, reply header and JSON body, grouped by who speaks them."""
