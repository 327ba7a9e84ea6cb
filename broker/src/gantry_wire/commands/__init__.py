"""One typed struct for each request, reply header and JSON body, in modules by area."""
