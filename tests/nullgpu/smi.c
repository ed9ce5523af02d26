/* Stands in for nvidia-smi: answers the queries in use, from the machine's state, and fails as the real one does. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

static int chosen = -1; /* -i */
static bool units_shown = true, header_shown = true;

static void end(int code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    fflush(stdout);
    _exit(code);
}

static uint64_t mib(uint64_t bytes) { return bytes >> 20; }

static void print_bus(int gpu) { printf("00000000:%02X:00.0", machine_bus(gpu)); }

static void behave(void) {
    const char *how = machine.smi;
    if (!strncmp(how, "fail:", 5)) {
        char *text;
        long code = strtol(how + 5, &text, 10);
        end((int)code, "%s\n", *text == ':' ? text + 1 : "");
    }
    if (!strcmp(how, "hang")) for (;;) pause();
    if (!strncmp(how, "slow:", 5)) {
        double wanted = atof(how + 5);
        struct timespec pause = {(time_t)wanted, (long)((wanted - (double)(time_t)wanted) * 1e9)};
        while (nanosleep(&pause, &pause) != 0) continue;
    } else if (machine.nvml_init && strcmp(how, "ok")) {
        if (machine.nvml_init == 18)
            end(18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n");
        end(255, "Failed to initialize NVML: Unknown Error\n");
    }
    if (machine.gpu_count == 0) end(6, "No devices were found\n");
}

static bool is_meant(int gpu) { return chosen < 0 || chosen == gpu; }

static bool any_lost(void) {
    bool lost = false;
    for (int gpu = 0; gpu < machine.gpu_count; gpu++)
        if (is_meant(gpu) && machine.gpus[gpu].lost) {
            printf("Unable to determine the device handle for GPU%d: 0000:%02X:00.0: GPU is lost.  Reboot the system to "
                   "recover this GPU\n", gpu, machine_bus(gpu));
            lost = true;
        }
    return lost;
}

static void with_unit(uint64_t value, const char *unit) {
    printf("%llu", (unsigned long long)value);
    if (units_shown) printf(" %s", unit);
}

static const char *mode_of(const struct gpu *gpu) {
    return !strcmp(gpu->mode, "exclusive") ? "Exclusive_Process" : !strcmp(gpu->mode, "prohibited") ? "Prohibited" : "Default";
}

static bool print_field(const char *field, int number) {
    const struct gpu *gpu = &machine.gpus[number];
    if (!strcmp(field, "index")) printf("%d", number);
    else if (!strcmp(field, "uuid") || !strcmp(field, "gpu_uuid")) printf("%s", gpu->uuid);
    else if (!strcmp(field, "name") || !strcmp(field, "gpu_name")) printf("%s", gpu->name);
    else if (!strcmp(field, "count")) printf("%d", machine.gpu_count);
    else if (!strcmp(field, "pci.bus_id") || !strcmp(field, "gpu_bus_id")) print_bus(number);
    else if (!strcmp(field, "memory.total")) with_unit(mib(gpu->memory), "MiB");
    else if (!strcmp(field, "memory.used")) with_unit(mib(machine_used_of_gpu(number)), "MiB");
    else if (!strcmp(field, "memory.free")) with_unit(mib(gpu->memory - machine_used_of_gpu(number)), "MiB");
    else if (!strcmp(field, "utilization.gpu")) with_unit(machine_used_of_gpu(number) ? 50 : 0, "%");
    else if (!strcmp(field, "temperature.gpu")) printf("40");
    else if (!strcmp(field, "power.draw")) printf(units_shown ? "60.00 W" : "60.00");
    else if (!strcmp(field, "compute_mode")) printf("%s", mode_of(gpu));
    else if (!strcmp(field, "compute_cap")) printf("%d.%d", machine.capability / 10, machine.capability % 10);
    else if (!strcmp(field, "driver_version")) printf("%s", machine.driver);
    else if (!strcmp(field, "mig.mode.current")) printf("%s", gpu->slices ? "Enabled" : "[N/A]");
    else if (!strcmp(field, "gpu_recovery_action")) printf("%s", gpu->recovery);
    else if (!strcmp(field, "persistence_mode")) printf("Enabled");
    else return false;
    return true;
}

static bool print_app_field(const char *field, const struct app *app) {
    if (!strcmp(field, "pid")) printf("%ld", app->pid);
    else if (!strcmp(field, "process_name") || !strcmp(field, "name")) printf("%s", app->name);
    else if (!strcmp(field, "used_memory") || !strcmp(field, "used_gpu_memory")) with_unit(mib(app->bytes), "MiB");
    else return print_field(field, app->gpu);
    return true;
}

/* One line of csv; `app` is NULL for a line about a GPU. */
static void print_line(const char *fields, int gpu, const struct app *app) {
    char words[2048], *rest = NULL;
    snprintf(words, sizeof words, "%s", fields);
    const char *comma = "";
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        word += strspn(word, " ");
        printf("%s", comma);
        if (!(app ? print_app_field(word, app) : print_field(word, gpu)))
            end(2, "Field \"%s\" is not a valid field to query.\n\n", word);
        comma = ", ";
    }
    printf("\n");
}

static void query_gpus(const char *fields) {
    bool lost = any_lost();
    if (header_shown) printf("%s\n", fields);
    for (int gpu = 0; gpu < machine.gpu_count; gpu++)
        if (is_meant(gpu) && !machine.gpus[gpu].lost) print_line(fields, gpu, NULL);
    end(lost ? 15 : 0, "%s", "");
}

static void query_apps(const char *fields) {
    struct app apps[64];
    bool lost = any_lost();
    if (header_shown) printf("%s\n", fields);
    for (int gpu = 0; gpu < machine.gpu_count; gpu++) {
        int count = is_meant(gpu) && !machine.gpus[gpu].lost ? machine_apps(gpu, apps, 64) : 0;
        for (int i = 0; i < count; i++) print_line(fields, gpu, &apps[i]);
    }
    end(lost ? 15 : 0, "%s", "");
}

static void list(void) {
    bool lost = any_lost();
    for (int gpu = 0; gpu < machine.gpu_count; gpu++) {
        if (machine.gpus[gpu].lost) continue;
        printf("GPU %d: %s (UUID: %s)\n", gpu, machine.gpus[gpu].name, machine.gpus[gpu].uuid);
        for (int unit = machine.gpu_count, slice = 0; unit < machine.unit_count; unit++)
            if (machine.units[unit].gpu == gpu)
                printf("  MIG 1g.%dgb     Device  %d: (UUID: %s)\n", (int)(machine.units[unit].memory >> 30), slice++,
                       machine.units[unit].uuid);
    }
    end(lost ? 15 : 0, "%s", "");
}

static void print_memory(const char *indent, uint64_t total, uint64_t used) {
    printf("%s<fb_memory_usage>\n%s\t<total>%llu MiB</total>\n%s\t<reserved>0 MiB</reserved>\n", indent, indent,
           (unsigned long long)mib(total), indent);
    printf("%s\t<used>%llu MiB</used>\n%s\t<free>%llu MiB</free>\n%s</fb_memory_usage>\n", indent,
           (unsigned long long)mib(used), indent, (unsigned long long)mib(total - used), indent);
}

static void print_gpu_as_xml(int number) {
    const struct gpu *gpu = &machine.gpus[number];
    struct app apps[64];
    printf("\t<gpu id=\"");
    print_bus(number);
    printf("\">\n\t\t<product_name>%s</product_name>\n\t\t<mig_mode>\n\t\t\t<current_mig>%s</current_mig>\n\t\t</mig_mode>\n",
           gpu->name, gpu->slices ? "Enabled" : "N/A");
    printf("\t\t<mig_devices>%s", gpu->slices ? "\n" : "");
    for (int unit = machine.gpu_count, slice = 0; unit < machine.unit_count; unit++)
        if (machine.units[unit].gpu == number) {
            printf("\t\t\t<mig_device>\n\t\t\t\t<index>%d</index>\n\t\t\t\t<gpu_instance_id>%d</gpu_instance_id>\n", slice, slice + 7);
            print_memory("\t\t\t\t", machine.units[unit].memory, machine_used(unit));
            printf("\t\t\t</mig_device>\n");
            slice++;
        }
    printf("%s</mig_devices>\n\t\t<uuid>%s</uuid>\n", gpu->slices ? "\t\t" : "\n\t\t\tNone\n\t\t", gpu->uuid);
    printf("\t\t<gpu_recovery_action>%s</gpu_recovery_action>\n\t\t<pci>\n\t\t\t<pci_bus_id>", gpu->recovery);
    print_bus(number);
    printf("</pci_bus_id>\n\t\t</pci>\n");
    print_memory("\t\t", gpu->memory, machine_used_of_gpu(number));
    printf("\t\t<compute_mode>%s</compute_mode>\n", mode_of(gpu));
    printf("\t\t<ecc_errors>\n\t\t\t<volatile>\n\t\t\t\t<dram_correctable>0</dram_correctable>\n"
           "\t\t\t\t<dram_uncorrectable>%d</dram_uncorrectable>\n\t\t\t</volatile>\n\t\t</ecc_errors>\n", gpu->ecc);
    printf("\t\t<remapped_rows>\n\t\t\t<remapped_row_pending>%s</remapped_row_pending>\n"
           "\t\t\t<remapped_row_failure>%s</remapped_row_failure>\n\t\t</remapped_rows>\n",
           strcmp(gpu->remap, "pending") ? "No" : "Yes", strcmp(gpu->remap, "failure") ? "No" : "Yes");
    printf("\t\t<processes>\n");
    int count = machine_apps(number, apps, 64);
    for (int i = 0; i < count; i++)
        printf("\t\t\t<process_info>\n\t\t\t\t<pid>%ld</pid>\n\t\t\t\t<type>C</type>\n\t\t\t\t<process_name>%s</process_name>\n"
               "\t\t\t\t<used_memory>%llu MiB</used_memory>\n\t\t\t</process_info>\n",
               apps[i].pid, apps[i].name, (unsigned long long)mib(apps[i].bytes));
    printf("\t\t</processes>\n\t</gpu>\n");
}

static void print_xml(void) {
    bool lost = any_lost();
    printf("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n");
    printf("\t<driver_version>%s</driver_version>\n\t<cuda_version>%s</cuda_version>\n\t<attached_gpus>%d</attached_gpus>\n",
           machine.driver, machine.cuda, machine.gpu_count);
    for (int gpu = 0; gpu < machine.gpu_count; gpu++)
        if (is_meant(gpu) && !machine.gpus[gpu].lost) print_gpu_as_xml(gpu);
    printf("</nvidia_smi_log>\n");
    end(lost ? 15 : 0, "%s", "");
}

static void choose(const char *what) {
    unsigned bus = 0;
    for (int gpu = 0; gpu < machine.gpu_count; gpu++) {
        if (!strcmp(what, machine.gpus[gpu].uuid)) chosen = gpu;
        if (strchr(what, ':') && sscanf(what, "%*x:%x:", &bus) == 1 && (int)bus == machine_bus(gpu)) chosen = gpu;
        if (strspn(what, "0123456789") == strlen(what) && atoi(what) == gpu) chosen = gpu;
    }
    if (chosen < 0) end(6, "No devices were found\n");
}

int main(int count, char **words) {
    const char *gpu_fields = NULL, *app_fields = NULL;
    bool listing = false, all = false, xml = false;
    machine_refresh();
    behave();
    for (int i = 1; i < count; i++) {
        const char *word = words[i], *value = strchr(word, '=') ? strchr(word, '=') + 1 : "";
        if (!strncmp(word, "--query-gpu=", 12)) gpu_fields = value;
        else if (!strncmp(word, "--query-compute-apps=", 21)) app_fields = value;
        else if (!strncmp(word, "--format=", 9)) {
            header_shown = !strstr(value, "noheader");
            units_shown = !strstr(value, "nounits");
        } else if (!strcmp(word, "-L") || !strcmp(word, "--list-gpus")) listing = true;
        else if (!strcmp(word, "-q")) all = true;
        else if (!strcmp(word, "-x")) xml = true;
        else if ((!strcmp(word, "-i") || !strcmp(word, "--id")) && i + 1 < count) choose(words[++i]);
        else if (!strncmp(word, "--id=", 5)) choose(value);
        else end(1, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
    }
    if (gpu_fields) query_gpus(gpu_fields);
    if (app_fields) query_apps(app_fields);
    if (listing) list();
    if (all && xml) print_xml();
    end(1, "the stand-in for nvidia-smi has no answer to this\n");
}
