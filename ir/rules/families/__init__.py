"""The rules of operators, one module for each family; `ir.rules` imports all of them, which registers them."""
