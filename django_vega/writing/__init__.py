"""How rows reach the database: fenced, in one transaction, or not at all."""
