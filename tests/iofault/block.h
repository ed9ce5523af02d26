/* What the processes of a run share: which call is to fail, and how often each was made. shim.py has the same. */

#include <stdint.h>

enum { OFF = 0, RECORD = 1, FAIL = 2 };
enum { SHORT = -1 };
/* In the place of an error: half is written, and the call says so. */
enum { PATH_BYTES = 4096, SLOTS = 8192 };

struct slot {
    uint64_t key;
    uint32_t count;
    uint32_t unused;
};

struct block {
    int32_t mode;
    int32_t error;
    int32_t for_good;
    /* Nonzero: every later call of that kind in that role fails as well. */
    uint32_t time;
    uint64_t key;
    /* Of role, kind and path. */
    uint64_t where;
    /* Of role and kind. */
    int32_t begun;
    uint32_t failed;
    /* Calls that were failed. */
    char root[PATH_BYTES];
    char log[PATH_BYTES];
    struct slot slots[SLOTS];
};
