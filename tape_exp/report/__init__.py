"""One static HTML page of all tables, figures and runs, made from the committed records."""
