/* Fuzzes reading of clips with FFmpeg's libraries, which need a real file: the input is a file in memory.
 * Frames of an accepted clip must be decoded to numbers from -1 to 1. The sanitizers do not instrument
 * FFmpeg, only see its allocations. */
#include <sys/mman.h>
#include <unistd.h>

#include "data/clip.h"
#include "fuzz.h"

enum { FRAMES = 2, SIDE = 8, VALUES = 3 * FRAMES * SIDE * SIDE, LARGEST = 1 << 20 };

static void read_window(const char *path, const DsviClipInfo *info)
{
    const DsviClipWindow window = {
        .start = 0, .fps = 8, .frames = FRAMES, .height = SIDE, .width = SIDE, .crop_x = 0.5, .crop_y = 0.5};
    float *pixels = malloc(VALUES * sizeof *pixels); /* on the heap, so that a write past it is detected */
    fuzz_expect(pixels && info->width > 0 && info->height > 0);
    if (dsvi_clip_read(path, &window, pixels) == DSV_OK) {
        fuzz_accept();
        for (int i = 0; i < VALUES; i++)
            fuzz_expect(pixels[i] >= -1 && pixels[i] <= 1);
    }
    free(pixels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    DsviClipInfo info;
    int file = memfd_create("clip", MFD_CLOEXEC);
    fuzz_expect(file >= 0 && write(file, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (dsvi_clip_probe(path, &info) == DSV_OK && info.width * info.height <= LARGEST)
        read_window(path, &info);
    close(file);
    return 0;
}
