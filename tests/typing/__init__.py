"""What type checkers must accept and refuse; read by mypy and pyright, never run.

Right calls carry `assert_type`. Wrong ones carry `# type: ignore[code]`: both tools report a
comment that suppresses nothing, so a wrong call that one of them accepts is an error.
"""
