from importlib.util import find_spec

# triton has no macOS build
collect_ignore = (
    [] if find_spec("triton") else ["test_compile.py", "test_counting.py", "test_interpreter.py", "test_sanitizer.py"]
)
