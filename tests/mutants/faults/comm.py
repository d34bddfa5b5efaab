"""Faults in what crosses ranks: fedmpi/comm."""
from __future__ import annotations

FAULTS: list[tuple[str, str, str]] = [
    ("fedmpi.comm.order_performer:OrderPerformer.deliver", "self.outgoing[position]", "self.outgoing[0]"),
    ("fedmpi.comm.order_performer:OrderPerformer.deliver", "self.world.sent += row.nbytes", "pass"),
    ("fedmpi.comm.rank_pool:RankPool.list_changed_fields", "select_sent(shared)", "shared"),
    # exact sums
    ("fedmpi.comm.exact:", "SCALE = 2.0 ** 44", "SCALE = 2.0 ** 43"),
    ("fedmpi.comm.exact:add_rows", "factors[some])", "exact_weights[some])"),
    ("fedmpi.comm.exact:add_large_of", "most >= SMALL_LIMIT", "most > SMALL_LIMIT * 10"),
    ("fedmpi.comm.exact:accumulate", "if by_row[r] == group", "if by_row[r] != group"),
    ("fedmpi.comm.exact:NotFinite.__init__", "~values.isfinite()", "values.isnan()"),
    ("fedmpi.comm.exact:read_fixed_point", "scale / SCALE", "1 / SCALE"),
    # rows
    ("fedmpi.comm.rows:", "TILE_COLUMNS = 1 << 16", "TILE_COLUMNS = 1 << 15"),
    ("fedmpi.comm.rows:Rows.gram", "origin[start:start + TILE_COLUMNS]", "origin[:tile.shape[1]]"),
    ("fedmpi.comm.rows:Rows.gram", "beside[:, start:start + TILE_COLUMNS]", "beside[:, :tile.shape[1]]"),
    ("fedmpi.comm.orders:RowRef.columns", "self.start + start, self.start + stop", "start, stop"),
    ("fedmpi.comm.rows:Rows.mean_by", "np.bincount(group, weights, minlength=k)", "np.bincount(group, minlength=k)"),
    ("fedmpi.comm.rows:Rows.mean_by", "shares / scale[group]", "shares"),
    ("fedmpi.comm.rows:Rows._read", "scale, self.dtype)", "scale)"),
    # medians
    ("fedmpi.comm.robust:trim_mean_by", "trim_mean(own[groups == j], int(cut))",
     "trim_mean(own[groups == j], int(cuts[0]))"),
    ("fedmpi.comm.robust:gather_columns", "reshape(len(ranks), width)", "reshape(-1, width)"),
    ("fedmpi.comm.robust:RobustMean.count_values_left_out", "members - ROUNDING", "members + ROUNDING"),
    # orders
    ("fedmpi.comm.frame:round_up_to_8", "(nbytes + 7) // 8 * 8", "nbytes // 8 * 8 + 8"),
    ("fedmpi.comm.rank_pool:RankPool.train", "return bad == 0", "return bad > 0"),
    ("fedmpi.comm.order_performer:OrderPerformer._gather_in_order",
     'out[np.argsort(ranks, kind="stable")] = gathered', "out[:] = gathered"),
    ("fedmpi.comm.order_performer:OrderPerformer._note_stop",
     "self.stop_requested or bool(every[:, -1].any())", "bool(every[0, -1])"),
    ("fedmpi.comm.rank_pool:RankPool.list_changed_fields", "self._last_sent = now",
     "self._last_sent = self._last_sent or now"),
    # the world
    ("fedmpi.comm.mpi_world:World._reduce_by_halving", "(self.rank - root) % self.size", "self.rank"),
    ("fedmpi.comm.mpi_world:World.reduce", "self.size <= MAX_RANKS_FOR_HALVING", "self.size <= 1"),
    (
        "fedmpi.comm.mpi_world:World.reduce",
        "self.sent += buffer.nbytes",
        "self.sent += buffer.nbytes * (self.size - 1)",
    ),
    ("fedmpi.comm.mpi_world:World.gather", "out.nbytes - rows.nbytes", "out.nbytes"),
    ("fedmpi.comm.mpi_world:World._wait_for", "waited > FIRST_SLEEP_AFTER_S", "waited > LONGEST_SLEEP_S"),
    ("fedmpi.comm.mpi_world:World._wait_for", "waited / SLEEP_DIVISOR", "waited / 2"),
    ("fedmpi.comm.mpi_world:World.fail", "            time.sleep(END_BY_RANK_0_S)", "            pass"),
    ("fedmpi.comm.mpi_world:World.close", "os._exit(0)", "os._exit(code)"),
    ("fedmpi.comm.mpi_world:World.close", "            time.sleep(LEAVE_AFTER_WORKERS_S)", "            pass"),
    # who hangs, who speaks
    ("fedmpi.comm.heartbeat:find_late", "silent[peer] > limit", "silent[peer] >= limit"),
    ("fedmpi.comm.heartbeat:find_late", "and not reports[peer][INSIDE]", ""),
    ("fedmpi.comm.heartbeat:Heartbeat.fail", "late[:MAX_NAMED]", "late[:MAX_NAMED + 1]"),
    ("fedmpi.comm.heartbeat:Heartbeat.fail", "tell=False", "tell=True"),
    ("fedmpi.comm.heartbeat:Heartbeat.receive_reports", "            self.silent[peer] = 0.\n", ""),
    ("fedmpi.comm.launcher:shares_cores", "local > cores and not bound", "local >= cores and not bound"),
    ("fedmpi.comm.launcher:was_started_by_srun", '"OMPI_COMM_WORLD_SIZE" in os.environ', "False"),
    ("fedmpi.comm.launcher:drain", "            stream.flush()\n", ""),
    ("fedmpi.comm.gpu_staging:wants_gpu_direct", "world.size > 1 and device", "device")]
