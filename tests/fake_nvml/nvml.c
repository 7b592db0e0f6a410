/* A libnvidia-ml.so.1 for tests: the calls that the engine makes, answered from a control file.
 *
 * FAKE_NVML_CONTROL names the file: lines of "key value". It is read anew at each call, so a test changes a running
 * node's GPUs by rewriting it. Keys: count; a reading of card 0 or of all ("power_mw 300000"), of one card
 * ("power_mw.1 250000"); "fail.<call> <nvmlReturn>" makes a call fail, on one card with ".<index>" at the end;
 * "hang.<call> 1" keeps it from returning; xid.seq and xid.code: a new seq is a new XID of card xid.gpu.
 * Layouts are those of pynvml's structures.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct device { unsigned index; } *nvmlDevice_t;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10 };
enum { MAX_CARDS = 16, LINKS = 4 };

static struct device cards[MAX_CARDS];
static long long seen_xid_seq;

static int find(const char *key, long long *value)
{
    const char *path = getenv("FAKE_NVML_CONTROL");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], name[200];
    long long number;
    int found = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%199s %lld", name, &number) == 2 && strcmp(name, key) == 0) {
            *value = number;
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}

static long long of_card(const char *key, unsigned index, long long otherwise)
{
    char own[200];
    long long value;
    snprintf(own, sizeof own, "%s.%u", key, index);
    return find(own, &value) || find(key, &value) ? value : otherwise;
}

/* What the call named `call` returns before it does anything. */
static nvmlReturn_t enter(const char *call, int index)
{
    char key[200];
    long long value;
    snprintf(key, sizeof key, "hang.%s", call);
    while (find(key, &value) && value)
        usleep(10000);
    snprintf(key, sizeof key, "fail.%s.%d", call, index);
    if (index >= 0 && find(key, &value))
        return (nvmlReturn_t)value;
    snprintf(key, sizeof key, "fail.%s", call);
    if (find(key, &value))
        return (nvmlReturn_t)value;
    snprintf(key, sizeof key, "fail.all.%d", index);
    return index >= 0 && find(key, &value) ? (nvmlReturn_t)value : SUCCESS;
}

#define ENTER(index)                                  \
    do {                                              \
        nvmlReturn_t failure = enter(__func__, index); \
        if (failure != SUCCESS)                       \
            return failure;                           \
    } while (0)

/* A call of the form f(card, *number). */
#define READING(call, type, key, otherwise)                       \
    nvmlReturn_t call(nvmlDevice_t card, type *value)             \
    {                                                             \
        ENTER((int)card->index);                                  \
        *value = (type)of_card(key, card->index, otherwise);      \
        return SUCCESS;                                           \
    }

READING(nvmlDeviceGetPowerUsage, unsigned, "power_mw", 300000)
READING(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_mw", 700000)
READING(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_mj", 123456789)
READING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clock_events", 1)
READING(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replay", 0)

const char *nvmlErrorString(nvmlReturn_t code) { return code == SUCCESS ? "Success" : "a fake error"; }
nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(-1); return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    long long value = 1;
    ENTER(-1);
    find("count", &value);
    *count = (unsigned)value;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *card)
{
    ENTER((int)index);
    if (index >= MAX_CARDS)
        return INVALID_ARGUMENT;
    cards[index].index = index;
    *card = &cards[index];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t card, char *name, unsigned length)
{
    ENTER((int)card->index);
    snprintf(name, length, "NVIDIA Fake 80GB");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t card, char *uuid, unsigned length)
{
    ENTER((int)card->index);
    snprintf(uuid, length, "GPU-fake-%u", card->index);
    return SUCCESS;
}

struct pci_info { char legacy_id[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t card, struct pci_info *info)
{
    ENTER((int)card->index);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", card->index + 1);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t card, unsigned rates[2])
{
    ENTER((int)card->index);
    rates[0] = (unsigned)of_card("gpu_util", card->index, 87);
    rates[1] = (unsigned)of_card("memory_util", card->index, 42);
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
static const unsigned long long MIB = 1 << 20;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t card, struct memory *memory)
{
    ENTER((int)card->index);
    *memory = (struct memory){81920 * MIB, 20480 * MIB, 61440 * MIB};
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t card, struct memory_v2 *memory)
{
    ENTER((int)card->index);
    *memory = (struct memory_v2){memory->version, 81920 * MIB, 512 * MIB, 20480 * MIB, 60928 * MIB};
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t card, unsigned sensor, unsigned *celsius)
{
    ENTER((int)card->index);
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = (unsigned)of_card("temperature", card->index, 61);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t card, unsigned threshold, unsigned *celsius)
{
    ENTER((int)card->index);
    *celsius = threshold == 1 ? 95 : 100;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t card, unsigned clock, unsigned *mhz)
{
    ENTER((int)card->index);
    *mhz = clock == 1 ? 1980 : clock == 2 ? 2619 : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t card, unsigned type, unsigned counter, unsigned long long *count)
{
    static const char *keys[2][2] = {{"ecc_sbe_vol", "ecc_sbe_agg"}, {"ecc_dbe_vol", "ecc_dbe_agg"}};
    ENTER((int)card->index);
    *count = (unsigned long long)of_card(keys[type & 1][counter & 1], card->index, 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t card, unsigned *correctable, unsigned *uncorrectable,
                                       unsigned *pending, unsigned *failure)
{
    ENTER((int)card->index);
    *correctable = (unsigned)of_card("remapped_correctable", card->index, 0);
    *uncorrectable = (unsigned)of_card("remapped_uncorrectable", card->index, 0);
    *pending = (unsigned)of_card("row_remap_pending", card->index, 0);
    *failure = (unsigned)of_card("row_remap_failure", card->index, 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t card, unsigned link, unsigned *is_up)
{
    ENTER((int)card->index);
    if (link >= LINKS)
        return INVALID_ARGUMENT;
    *is_up = link != (unsigned)of_card("nvlink_down", card->index, LINKS);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t card, unsigned link, unsigned counter,
                                             unsigned long long *count)
{
    ENTER((int)card->index);
    *count = counter == 0 ? link + 1 : 0;
    return SUCCESS;
}

struct field_value {
    unsigned id, scope;
    long long timestamp, latency_us;
    int value_type;
    nvmlReturn_t result;
    unsigned long long value;
};

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t card, int count, struct field_value *values)
{
    ENTER((int)card->index);
    for (int i = 0; i < count; i++) {
        char key[32];
        long long value = 0;
        snprintf(key, sizeof key, "field.%u", values[i].id);
        value = of_card(key, card->index, -1);
        values[i].value_type = 1; /* unsigned int */
        values[i].value = value < 0 ? 0 : (unsigned long long)value;
        values[i].result = value < 0 ? NOT_SUPPORTED : SUCCESS;
    }
    return SUCCESS;
}

struct event { nvmlDevice_t card; unsigned long long type, data; unsigned gpu_instance, compute_instance; };

nvmlReturn_t nvmlEventSetCreate(void **set) { ENTER(-1); *set = &seen_xid_seq; return SUCCESS; }
nvmlReturn_t nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t card, unsigned long long types, void *set)
{
    (void)set;
    ENTER((int)card->index);
    return types & ~8ULL ? NOT_SUPPORTED : SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    (void)set;
    ENTER(-1);
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10, usleep(10000)) {
        long long seq = 0, code = 0, gpu = 0;
        if (find("xid.seq", &seq) && seq != seen_xid_seq && find("xid.code", &code)) {
            find("xid.gpu", &gpu);
            seen_xid_seq = seq;
            *event = (struct event){&cards[gpu], 8, (unsigned long long)code, 0, 0};
            return SUCCESS;
        }
    }
    return TIMEOUT;
}
