# Prints the missing modules that the code on standard input imports, one on each line.
import ast, importlib.util, sys
try:
    tree = ast.parse(sys.stdin.buffer.read())
except (SyntaxError, ValueError, RecursionError, MemoryError):
    sys.exit()
names = set()
for node in ast.walk(tree):
    if isinstance(node, ast.Import):
        names.update(alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        names.add(node.module.split(".")[0])
for name in sorted(names - set(sys.stdlib_module_names)):
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        print(name)
