"""The verbs. Each is declared once, as a request whose fields are its options; the command line and Python use that
declaration.
"""
