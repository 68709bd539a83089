#include "spawner/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cleanup.h"

/* Refused with EPERM: what configures the kernel or leaves the namespaces. A user namespace would
 * protect the host from most of these; refusing them keeps their bugs out of reach as well. */
static const int refused[] = {
    SCMP_SYS(acct),
    SCMP_SYS(add_key),
    SCMP_SYS(bpf),
    SCMP_SYS(clock_adjtime),
    SCMP_SYS(clock_settime),
    SCMP_SYS(delete_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fsopen),
    SCMP_SYS(fspick),
    SCMP_SYS(init_module),
    SCMP_SYS(ioperm),
    SCMP_SYS(iopl),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(kexec_load),
    SCMP_SYS(keyctl),
    SCMP_SYS(lookup_dcookie),
    SCMP_SYS(mount),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(move_mount),
    SCMP_SYS(nfsservctl),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(open_tree),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(pivot_root),
    SCMP_SYS(quotactl),
    SCMP_SYS(quotactl_fd),
    SCMP_SYS(reboot),
    SCMP_SYS(request_key),
    SCMP_SYS(setns),
    SCMP_SYS(settimeofday),
    SCMP_SYS(stime),
    SCMP_SYS(swapoff),
    SCMP_SYS(swapon),
    SCMP_SYS(syslog),
    SCMP_SYS(umount),
    SCMP_SYS(umount2),
    SCMP_SYS(unshare),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(vhangup),
    SCMP_SYS(vm86),
    SCMP_SYS(vm86old),
};

/* Refused with ENOSYS: programs fall back to what the filter can look into. */
static const int absent[] = {
    SCMP_SYS(clone3),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(io_uring_setup),
};

/* Socket families that no network namespace separates, or that only kernel bugs are looked for in. */
static const int families[] = {AF_VSOCK,     AF_ALG, AF_KEY, AF_RDS,     AF_CAN, AF_TIPC,
                               AF_BLUETOOTH, AF_NFC, AF_KCM, AF_QIPCRTR, AF_SMC, AF_XDP};

static int add_rules(scmp_filter_ctx filter) {
    const scmp_datum_t namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                    CLONE_NEWUTS | CLONE_NEWCGROUP;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(refused); i++)
        if (refused[i] >= 0)
            rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(absent); i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), absent[i], 0);
    for (int bit = 0; rc == 0 && bit < 32; bit++) {
        scmp_datum_t flag = UINT64_C(1) << bit;
        if (namespaces & flag)
            rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, flag, flag));
    }
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(families); i++)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
                              SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i], 0));
    /* Typing into a terminal that another process reads. */
    if (rc == 0)
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(ioctl), 1,
                              SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCSTI));
    return rc;
}

int filter_create(struct err *err) {
    AUTO_CLOSE int fd = memfd_create("sandlot-filter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (fd < 0 || !filter) {
        seccomp_release(filter);
        return err_set_errno(err, errno, "system call filter");
    }
    seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    int rc = add_rules(filter);
    if (rc == 0)
        rc = seccomp_export_bpf(filter, fd);
    seccomp_release(filter);
    if (rc < 0)
        return err_set_errno(err, -rc, "system call filter");
    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return take_fd(&fd);
}
