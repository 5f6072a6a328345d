"""The configuration: its schema, composition and checks, and the errors that users see."""
