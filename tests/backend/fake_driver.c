/* A stand-in for NVIDIA's libcuda.so.1 that shows FAKE_GPUS GPUs, a number that the build defines. */
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);

int cuInit(unsigned flags)
{
    return (int)flags;
}

int cuDeviceGetCount(int *count)
{
    *count = FAKE_GPUS;
    return 0;
}
