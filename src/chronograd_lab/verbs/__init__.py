"""The verbs that the lab adds to the command line: one file each, imported when it is called."""

VERBS = {
    "study": "A question answered from numbers: list the studies, run one.",
    "hand-in": "An exercise's answers as executed notebooks, with data.",
}
