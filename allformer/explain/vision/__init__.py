"""What a model sees, for the report: pictures with answers, attention over them, places."""
