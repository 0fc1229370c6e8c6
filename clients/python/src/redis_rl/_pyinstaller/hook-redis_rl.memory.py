"""PyInstaller reads these names. wasmtime has no hook of its own, and its library none of the usual names."""

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_data_files, collect_dynamic_libs

datas = collect_data_files("redis_rl")
binaries = []
if find_spec("wasmtime"):
    binaries = collect_dynamic_libs("wasmtime", search_patterns=["*.so", "*.dylib", "*.dll"])
