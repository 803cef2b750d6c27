"""What flatc makes of the schemas; see scripts/generate_schema."""
