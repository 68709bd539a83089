/* One file on its way into or out of a sandbox, with back-pressure both ways. Loop thread. */
#pragma once

#include "broker/sandbox/sandbox.h"
#include "sandlot/v1/file.pb-c.h"

struct transfer;

struct transfer_ops {
    /* Upload: the next chunk may be written. */
    void (*writable)(void *arg);
    /* Download: first info, then chunks (the other is NULL); valid during the call. After each the
     * transfer is paused until transfer_resume. */
    void (*received)(void *arg, const Sandlot__V1__FileInfo *info, const uint8_t *bytes, size_t len);
    /* The last callback, exactly once unless transfer_abandon comes first. size: bytes uploaded. */
    void (*done)(void *arg, uint64_t size, const struct err *err);
};

/* -1: not started, no callback comes. Nothing is written before `writable`. */
int transfer_upload(struct sandbox *sandbox, const Sandlot__V1__UploadTarget *target,
                    const struct transfer_ops *ops, void *arg, struct transfer **ret, struct err *err);
int transfer_download(struct sandbox *sandbox, const Sandlot__V1__DownloadRequest *request,
                      const struct transfer_ops *ops, void *arg, struct transfer **ret, struct err *err);

/* Copies the bytes; `writable` follows when there is room for more. */
void transfer_write(struct transfer *transfer, const uint8_t *bytes, size_t len);
/* All is written: make it visible. */
void transfer_commit(struct transfer *transfer);
void transfer_resume(struct transfer *transfer);
/* Ends it without an answer; what was not committed is undone. */
void transfer_abandon(struct transfer *transfer);
