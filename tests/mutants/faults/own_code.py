"""Faults of fedmpi/own_code, each of which some test sees."""
from __future__ import annotations

FAILURES = "fedmpi.own_code.failures:"
FINGERPRINT = "fedmpi.own_code.fingerprint:"
WITHOUT_FILE = "fedmpi.own_code.without_file:"
DEFINITIONS = WITHOUT_FILE + "Definitions."
CHANGES = "fedmpi.own_code.changes:"
MISDECLARED = "fedmpi.own_code.misdeclared:"

FAULTS: list[tuple[str, str, str]] = [
    (WITHOUT_FILE + "hash_all_own_code", "                del found[module]\n", "                pass\n"),
    (WITHOUT_FILE + "hash_all_own_code", "with suppress(RecursionError):", "if True:"),
    (FINGERPRINT + "list_imports", 'filter(None, [start, alias.name])', "[start, alias.name]"),
    (WITHOUT_FILE + "hash_class_without_file", "except RecursionError:", "except ValueError:"),
    (WITHOUT_FILE + "hash_part_without_file", "with_types=True", "with_types=False"),
    (WITHOUT_FILE + "has_no_file", "in (None, STANDARD_INPUT)", "is None"),
    (CHANGES + "find_hash", "None if found.get(module, \"\") is None else \"\"", "\"\""),
    (FINGERPRINT + "refuse_stale", "importlib.reload({name})", "importlib.reload"),
    (DEFINITIONS + "describe_code", "code.co_code.hex(), ", ""),
    (DEFINITIONS + "describe_contents", "sorted(value, key=self.describe_alone)", "()"),
    (DEFINITIONS + "describe_contents", "sorted(value, key=self.describe_alone)", "value"),
    (DEFINITIONS + "describe_alone", "self.known, self.known.copy()", "self.known, self.known"),
    (DEFINITIONS + "describe_class", "*cls.__mro__[1:]", "object"),
    (DEFINITIONS + "describe_function", "[function.__defaults__, function.__kwdefaults__,",
     "[function.__defaults__,"),
    (DEFINITIONS + "describe_function", "[function.__defaults__, ", "["),
    (DEFINITIONS + "describe_function", "yield self.describe(cell.cell_contents)",
     "yield cell.cell_contents is None"),
    (DEFINITIONS + "describe_function", "if name in function.__globals__:", "if False:"),
    (DEFINITIONS + "describe_definition", "if is_own_module(module) else", "if False else"),
    (WITHOUT_FILE, '("fget", ', "("),
    (WITHOUT_FILE, '"__firstlineno__",', ""),
    (WITHOUT_FILE + "find_global_names", "*map(find_global_names, inner)", ""),
    (MISDECLARED + "list_fields", '"ClassVar" not in str(kind)', "True"),
    (MISDECLARED + "refuse_typed_attributes", "owner.__mro__[1:]", "cls.__mro__"),
    (MISDECLARED + "refuse_typed_attributes", " and name not in list_fields(declared)", ""),
    (MISDECLARED + "refuse_misdeclared", "        refuse_misnamed_settings(cls, where)\n", ""),
    (MISDECLARED + "refuse_misnamed_settings", "isinstance(vars(base)[name], FunctionType)", "False"),
    (MISDECLARED + "refuse_misnamed_settings", " and not is_set_itself(owner, name)", ""),
    (MISDECLARED + "refuse_misdeclared", "        refuse_typed_attributes(cls, where)\n", ""),
    (FAILURES + "blame_own_code", "    except FedmpiError:\n        raise\n", ""),
    (FAILURES + "blame_own_code", "not (always or find_own_line(error))", "not find_own_line(error)"),
    (FAILURES + "blame_own_code", " from error", " from None"),
    (FAILURES + "find_own_line", "reversed([*traceback.walk_tb(error.__traceback__)])",
     "[*traceback.walk_tb(error.__traceback__)][:0]"),
    (FAILURES + "describe_error", '" ".join(str(said).split())', "str(said)"),
    (FINGERPRINT + "hash_tree", "only in (\"\", top)", "True"),
    (FINGERPRINT + "hash_tree", "        waiting |= find_files(root, name)\n", "        pass\n"),
    (FINGERPRINT + "find_base", " + (path.name == \"__init__.py\")", ""),
    (FINGERPRINT + "hash_module", "top not in list_plug_ins()", "True"),
    (FINGERPRINT + "find_home_modules", "is_own_module(base.__module__)", "False"),
    (FINGERPRINT + "refuse_stale", "before[0] is not made_by", "False"),
    (CHANGES + "list_changes", "old != new and ", ""),
    (CHANGES + "list_changes", " and None not in (old, new)", ""),
    (CHANGES + "refuse_other_code", "mine.get(name, \"\") != of_rank_0.get(name, \"\")", "False")]
