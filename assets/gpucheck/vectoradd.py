"""Adds two vectors on the first GPU through CUDA's driver API, checks the sums,
and says in one line what it saw. It needs NVIDIA's driver and nothing else.

Exit code 0: right, or simulated; 1: the last line of standard error says why not.
"""

import ctypes
import struct
import sys

COUNT = 1 << 20
THREADS = 256

# c[i] = a[i] + b[i]. Written for the oldest instruction set that gpulab offers a
# driver for (Kepler's): drivers translate it for the card they have, an H100
# included.
PTX = b"""
.version 3.0
.target sm_30
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %d<11>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %d4, %d1;
    cvta.to.global.u64 %d5, %d2;
    cvta.to.global.u64 %d6, %d3;
    mul.wide.u32 %d7, %r5, 4;
    add.s64 %d8, %d4, %d7;
    add.s64 %d9, %d5, %d7;
    add.s64 %d10, %d6, %d7;
    ld.global.f32 %f1, [%d8];
    ld.global.f32 %f2, [%d9];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d10], %f3;
DONE:
    ret;
}
\x00"""


class Failed(Exception):
    pass


class Driver:
    """CUDA's driver API; every call that fails raises what the driver says."""

    def __init__(self):
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            raise Failed(f"the driver's CUDA library is not in this container ({err})") from None
        self.simulated = hasattr(self.cuda, "gpulab_simulated_driver")

    def __call__(self, name, *args):
        code = getattr(self.cuda, name)(*args)
        if code != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(code, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'unknown error').decode()} (CUDA error {code})")

    def version(self):
        number = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"


def add(cuda):
    """Runs the kernel and returns the device's name."""
    cuda("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda("cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(100)
    cuda("cuDeviceGetName", name, len(name), device)
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        cuda("cuCtxSetCurrent", context)
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        cuda("cuModuleLoadData", ctypes.byref(module), PTX)
        cuda("cuModuleGetFunction", ctypes.byref(kernel), module, b"vector_add")
        compute(cuda, kernel)
    finally:
        cuda("cuDevicePrimaryCtxRelease_v2", device)
    return name.value.decode(errors="replace")


def compute(cuda, kernel):
    floats = ctypes.c_float * COUNT
    a = floats(*(float(i % 1000) for i in range(COUNT)))
    b = floats(*(float(i % 7) for i in range(COUNT)))
    c = floats()
    size = ctypes.c_size_t(ctypes.sizeof(floats))
    memory = []
    for host in (a, b, c):
        pointer = ctypes.c_uint64()
        cuda("cuMemAlloc_v2", ctypes.byref(pointer), size)
        cuda("cuMemcpyHtoD_v2", pointer, host, size)
        memory.append(pointer)
    values = [*memory, ctypes.c_uint32(COUNT)]
    arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    blocks = (COUNT + THREADS - 1) // THREADS
    cuda("cuLaunchKernel", kernel, blocks, 1, 1, THREADS, 1, 1, 0, None, arguments, None)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", c, memory[2], size)
    for pointer in memory:
        cuda("cuMemFree_v2", pointer)
    wrong = sum(1 for x, y, z in zip(a, b, c) if struct.pack("f", x + y) != struct.pack("f", z))
    if wrong:
        raise Failed(f"{wrong} of {COUNT} sums are wrong: the card or its memory is faulty")


def main():
    try:
        cuda = Driver()
        version = cuda.version()
        if cuda.simulated:
            print(f"a simulated GPU (CUDA {version}), which computes nothing")
            return 0
        print(f"{add(cuda)} (CUDA {version}) add {COUNT:,} numbers, all of them right")
        return 0
    except Failed as err:
        print(err, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
