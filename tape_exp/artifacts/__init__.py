"""Tables and figures of recorded runs. An artifact says what the rows and columns of one are.

``artifact`` reads one from ``conf/paper/<name>.yaml``; ``comparison`` makes one of the words of a
command. ``rows`` and ``cells`` find the runs and the value of each cell, ``view`` makes the table,
``figures`` the pictures, and ``runs`` names the runs that are missing.
"""
