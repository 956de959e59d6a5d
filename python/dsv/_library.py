"""libdsv.so through ctypes: loading, structs of dsv/attention.h, configurations, and errors as exceptions.

ctypes instead of an extension module: nothing is compiled against Python or PyTorch, so that one wheel serves
every version of both. A call costs microseconds, attention at video sizes milliseconds.
"""

import ctypes
import os
import pathlib
import threading

_NAME = "libdsv.so"


class Error(RuntimeError):
    """A call of the library failed. `status` is the number of its DsvStatus (dsv/status.h)."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


def _load():
    """Opens the library that DSV_LIBRARY names, or the wheel's, or an installed one."""
    named = os.environ.get("DSV_LIBRARY")
    bundled = pathlib.Path(__file__).parent / "lib" / _NAME
    path = named or (str(bundled) if bundled.exists() else _NAME)
    try:
        library = ctypes.CDLL(path)
        library.dsv_device_open
    except OSError as error:
        raise ImportError(
            f"{path} cannot be loaded: {error}; set DSV_LIBRARY to the path of {_NAME}"
        ) from None
    except AttributeError:
        raise ImportError(
            f"{path} is older than this package and lacks the interface that the package calls; set "
            f"DSV_LIBRARY to the path of a {_NAME} of this version"
        ) from None
    return library


class Rows(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    ]


class Shape(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("grid", ctypes.c_int64 * 3),
        ("dtype", ctypes.c_int),
        ("backward", ctypes.c_bool),
    ]


class Call(ctypes.Structure):
    _fields_ = [
        ("scale", ctypes.c_double),
        ("q", Rows),
        ("k", Rows),
        ("v", Rows),
        ("hidden", ctypes.c_void_p),
        ("out", Rows),
        ("lse", ctypes.c_void_p),
        ("dout", Rows),
        ("dq", Rows),
        ("dk", Rows),
        ("dv", Rows),
        ("pass_", ctypes.c_int64),
        ("recompute", ctypes.c_bool),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


class Memory(ctypes.Structure):
    _fields_ = [("state_bytes", ctypes.c_size_t), ("workspace_bytes", ctypes.c_size_t)]


class Report(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_int64),
        ("sparse_blocks", ctypes.c_int64),
        ("density", ctypes.c_double),
        ("captured_mass", ctypes.c_double),
        ("measured", ctypes.c_bool),
        ("output_error", ctypes.c_double),
    ]


class BlockReport(ctypes.Structure):
    _fields_ = [
        ("sparse", ctypes.c_bool),
        ("over_lists", ctypes.c_bool),
        ("captured_mass", ctypes.c_double),
        ("density", ctypes.c_double),
        ("estimated_mass", ctypes.c_double),
        ("share90", ctypes.c_double),
        ("changes", ctypes.c_int64),
        ("output_error", ctypes.c_double),
    ]


class Lists(ctypes.Structure):
    _fields_ = [
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("grain", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
    ]


class OptionInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_char_p)
        for name in ("section", "section_text", "key", "type", "initial", "range", "unit", "help")
    ]


LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
F32, BF16, F64 = range(3)

_pointer = ctypes.c_void_p
_int64 = ctypes.c_int64
_STATUS_CALLS = {
    "dsv_config_set": [_pointer, ctypes.c_char_p],
    "dsv_device_open": [_pointer, _int64, _pointer],
    "dsv_token_order": [_pointer, _pointer, _pointer, _int64],
    "dsv_attention_create": [_pointer, _pointer, _pointer, LOG, _pointer, _pointer],
    "dsv_attention_bind": [_pointer, _pointer, ctypes.c_size_t, _pointer],
    "dsv_attention_step_begin": [_pointer, _int64, ctypes.c_bool, _pointer],
    "dsv_attention_step_end": [_pointer, _pointer],
    "dsv_attention_forward": [_pointer, _int64, _pointer],
    "dsv_attention_backward": [_pointer, _int64, _pointer],
    "dsv_attention_force": [_pointer, ctypes.c_bool],
    "dsv_attention_prescribe": [_pointer, ctypes.c_double],
    "dsv_attention_block_report": [_pointer, _int64, _pointer, _pointer],
    "dsv_attention_save": [_pointer, ctypes.c_char_p, _pointer],
    "dsv_attention_load": [_pointer, ctypes.c_char_p, _pointer],
    "dsv_attention_copy": [_pointer, _pointer, _pointer],
    "dsv_attention_lists": [_pointer, _int64, _pointer],
    "dsv_lists_forward": [_pointer, ctypes.c_int, _int64, _pointer, _pointer],
    "dsv_lists_backward": [_pointer, ctypes.c_int, _int64, _pointer, _pointer],
    "dsv_lists_workspace": [_pointer, ctypes.c_int, _int64, _pointer, ctypes.c_bool, _pointer],
}
_OTHER_CALLS = {
    "dsv_version": (ctypes.c_char_p, []),
    "dsv_error_message": (ctypes.c_char_p, []),
    "dsv_config_size": (ctypes.c_size_t, []),
    "dsv_config_defaults_sized": (None, [_pointer, ctypes.c_size_t]),
    "dsv_option_info": (ctypes.POINTER(OptionInfo), [ctypes.c_size_t]),
    "dsv_attention_memory": (None, [_pointer, _pointer]),
    "dsv_attention_report": (None, [_pointer, _pointer]),
    "dsv_attention_free": (None, [_pointer]),
}

_library = _load()
for _name, _arguments in _STATUS_CALLS.items():
    getattr(_library, _name).argtypes = _arguments
    getattr(_library, _name).restype = ctypes.c_int
for _name, (_result, _arguments) in _OTHER_CALLS.items():
    getattr(_library, _name).argtypes = _arguments
    getattr(_library, _name).restype = _result

_forked = False


def _after_fork():
    global _forked
    _forked = bool(_devices)


os.register_at_fork(after_in_child=_after_fork)


def call(name, *arguments):
    """Calls a function that returns a DsvStatus. Raises Error with the library's sentence if it fails."""
    if _forked:
        raise Error(
            1,
            "dsv computed before this process was forked, and its threads are missing here: "
            "start the process with the method spawn",
        )
    status = getattr(_library, name)(*arguments)
    if status != 0:
        raise Error(status, _library.dsv_error_message().decode())


def plain_call(name, *arguments):
    """Calls a function that cannot fail."""
    return getattr(_library, name)(*arguments)


def version():
    """Returns the version of the library: "0.2.0"."""
    return _library.dsv_version().decode()


def _option_names():
    """Returns the key of each option by its name in Python: sparse.target_density is target_density, and
    an option outside sparse attention has underscores for dots."""
    names, index = {}, 0
    while info := _library.dsv_option_info(index):
        key = info.contents.key.decode()
        if key.startswith("sparse."):  # warmup_steps is sparse.warmup_steps
            names[key.removeprefix("sparse.").replace(".", "_")] = key
        else:
            names.setdefault(key.replace(".", "_"), key)
        names.setdefault(key, key)
        index += 1
    return names


_NAMES = _option_names()


class Config:
    """A DsvConfig. Options are keyword arguments; `sparse.group` is `group`, or is given in a dictionary by
    its key. Unlike in a run of dsv, the number of steps is not known, so there is no dense finish unless
    `dense_finish` and `max_train_steps` are given."""

    def __init__(self, device, options):
        size = _library.dsv_config_size()
        self.memory = ctypes.create_string_buffer(size)
        self.options = dict(options)
        _library.dsv_config_defaults_sized(self.memory, size)
        self.set("device", device)
        self.set("sparse.dense_finish", 0)
        given = {_NAMES.get(name, name): value for name, value in options.items()}
        if "sparse.dense_finish" in given and not given.get("max_train_steps"):
            raise ValueError("dense_finish needs max_train_steps, from which its steps are counted back")
        for key, value in given.items():
            self.set(key, value)

    def set(self, key, value):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        call("dsv_config_set", self.memory, f"{key}={text}".encode())

    def token_order(self, grid):
        """Returns a ctypes array: the raster position of each token of the grid."""
        count = grid[0] * grid[1] * grid[2]
        order = (ctypes.c_int32 * max(count, 0))()
        call("dsv_token_order", self.memory, (ctypes.c_int64 * 3)(*grid), order, count)
        return order


_devices = {}
_devices_lock = threading.Lock()


def device(config, kind, number):
    """Returns the DsvDevice of this kind ("cpu" or "cuda"), number and options. It stays open until the
    process ends."""
    names = {_NAMES.get(name, name): str(value) for name, value in config.options.items()}
    key = (kind, number) + tuple(names.get(name) for name in ("isa", "threads", "deterministic"))
    with _devices_lock:
        if key not in _devices:
            opened = ctypes.c_void_p()
            call("dsv_device_open", config.memory, number, ctypes.byref(opened))
            _devices[key] = opened
        return _devices[key]


class Attention:
    """A DsvAttention with its memory. `log` receives a line of each decision."""

    def __init__(self, config, kind, number, shape, log, allocate, stream):
        self.handle = ctypes.c_void_p()
        self.device = device(config, kind, number)
        self._log = LOG(lambda _, line: log(line.decode()))
        call(
            "dsv_attention_create",
            self.device,
            config.memory,
            ctypes.byref(shape),
            self._log,
            None,
            ctypes.byref(self.handle),
        )
        memory = Memory()
        plain_call("dsv_attention_memory", self.handle, ctypes.byref(memory))
        self.workspace_bytes = memory.workspace_bytes
        self.state = allocate(memory.state_bytes)
        call("dsv_attention_bind", self.handle, self.state.data_ptr(), self.state.numel(), stream)

    def __del__(self):
        if getattr(self, "handle", None) and not _forked:
            plain_call("dsv_attention_free", ctypes.byref(self.handle))

    def call(self, name, *arguments):
        call(f"dsv_attention_{name}", self.handle, *arguments)

    def report(self):
        report = Report()
        plain_call("dsv_attention_report", self.handle, ctypes.byref(report))
        return report

    def block_report(self, block, heads):
        report, captured = BlockReport(), (ctypes.c_float * heads)()
        self.call("block_report", block, ctypes.byref(report), captured)
        return report, list(captured)

    def lists(self, block):
        """Returns the Lists of a block, or None if the block attended densely."""
        lists = Lists()
        try:
            self.call("lists", block, ctypes.byref(lists))
        except Error as error:
            if error.status == 2:
                return None
            raise
        return lists
