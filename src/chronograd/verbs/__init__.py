"""The verbs: each is declared once, as a request whose fields are its options. The command line and Python follow from it."""
