"""Faults in what a run leaves on disk: fedmpi/storage."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    # files become durable in order
    ("fedmpi.storage.atomic:atomic", "            sync(part)\n", ""),
    ("fedmpi.storage.atomic:atomic", "            sync(path.parent)\n", ""),
    ("fedmpi.storage.atomic:atomic", "            part.unlink()", "            pass"),
    ("fedmpi.storage.atomic:refuse_special", "not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)", "stat.S_ISBLK(mode)"),
    ("fedmpi.storage.atomic:Sink.remembering", "self.refusal or error", "None"),
    ("fedmpi.storage.folder:RunFolder.finish", "        self.save_history()\n", ""),
    ("fedmpi.storage.folder:RunFolder.history", "        with atomic(path) as part:\n            part.write_bytes",
     "        if True:\n            path.write_bytes"),
    # a checkpoint is whole, and each row its client's
    ("fedmpi.storage.seal:digest_pieces", "{first + i}", "{i}"),
    ("fedmpi.storage.seal:digest_pieces", "{label} {first", "{first"),
    ("fedmpi.storage.seal:digest_pieces", "        digest.update(data[start * row:stop * row])\n", ""),
    ("fedmpi.storage.sealed:SealedFile.rows", "if wrong.any():", "if wrong.all():"),
    ("fedmpi.storage.sealed:SealedFile.__init__", 'if seal.digest_outside(self.about["rows"], self.file, '
     'self.about["size"]) != self.about["digest"]:', "if False:"),
    ("fedmpi.storage.sealed:find_place", "SEAL_BYTES <= offset <= size - bytes_", "SEAL_BYTES <= offset"),
    ("fedmpi.storage.sealed:find_place", "    if data.chunks:", "    if False:"),
    ("fedmpi.storage.sealed:find_data_sets", "if not isinstance(group.get(name, getlink=True), h5py.HardLink):",
     "if False:"),
    ("fedmpi.storage.sealed:SealedFile.check_rows", "min(count, start + at_once)", "min(count, start + 1)"),
    ("fedmpi.storage.sealed:write_sealed", "        os.fsync(file.fileno())", "        pass"),
    ("fedmpi.storage.checkpoint:write_checkpoint", "            check_checkpoint(part, READ_BACK_BYTES)\n",
     "            pass\n"),
    ("fedmpi.storage.checkpoint:prune", "[*sealed][:keep]", "[*sealed][-keep:]"),
    ("fedmpi.storage.checkpoint:prune", "max(reversed(judged), key=", "max(judged, key="),
    ("fedmpi.storage.checkpoint:prune", "if any(map(verifies, stay)) else []", ""),
    ("fedmpi.storage.checkpoint:list_checkpoints", "(len(path.name), path.name)", "path.name"),
    ("fedmpi.storage.seal:digest_outside", "            at += len(block)\n        at = start + length",
     "            at += len(block)\n        at = start"),
    ("fedmpi.storage.seal:read_seal", 'entries["format"] > SEAL_FORMAT', 'entries["format"] > SEAL_FORMAT + 1'),
    # one run in a folder at a time
    ("fedmpi.storage.lock:", "SILENCE = 60.0", "SILENCE = 5.0"),
    ("fedmpi.storage.lock:Lock.beat", "                if self.held():\n                    os.utime",
     "                if True:\n                    os.utime"),
    ("fedmpi.storage.lock:Lock.release", "if self.held():", "if True:"),
    ("fedmpi.storage.lock:why_dead", "silence >= SILENCE", "silence >= BEAT / 2"),
    ("fedmpi.storage.lock:why_dead", 'me["cluster"] and holder.get("cluster") == me["cluster"]', "True"),
    ("fedmpi.storage.lock:why_dead", 'holder["restart"] < me["restart"]', 'holder["restart"] <= me["restart"]'),
    ("fedmpi.storage.lock:started", "fields[18]", "fields[0]"),
    ("fedmpi.storage.lock:started", 'if state in "ZX"', 'if state in "X"'),
    # what is told and counted
    ("fedmpi.storage.folder:default_folder", "last + 1", "len(numbers) + 1"),
    ("fedmpi.storage.folder:RunFolder.truncate_history", '"right"', '"left"'),
    ("fedmpi.storage.folder:RunFolder.append_metrics", "        self.behind = True\n", ""),
    ("fedmpi.storage.run_status:outcome_of", "not in (FINISHED, SAVED)", "not in (FINISHED,)"),
    ("fedmpi.storage.run_status:outcome_of", 'result["rounds"] < rounds', 'result["rounds"] <= rounds'),
    ("fedmpi.storage.run_status:outcome_of", "starts[-1][1]", "starts[0][1]")]
