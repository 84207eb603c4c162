"""The files that ezpz leaves, each as a class whose fields say what they hold: `ezpz.records.launch_record`, `.run`, ….

A record is checked once, where it is read (`ezpz.records.stored_files`), and what reads it asks for attributes. The
tables of fields in docs/files.md are made from the docstrings of these classes.
"""
