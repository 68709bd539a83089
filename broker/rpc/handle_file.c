/* FileService. Each side is read only when the other has room: the transfer's backlog bounds an
 * upload, one message under way a download. */
#include "broker/rpc/call.h"
#include "broker/rpc/find.h"
#include "broker/rpc/handlers.h"
#include "broker/sandbox/transfer.h"
#include "sandlot/v1/errors.pb-c.h"
#include "sandlot/v1/file.pb-c.h"

#define CHUNK_MAX (1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* ---- Upload ---- */

static void on_writable(void *arg) {
    call_read(arg);
}

static void on_upload_done(void *arg, uint64_t size, const struct err *err) {
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    Sandlot__V1__UploadResponse response = SANDLOT__V1__UPLOAD_RESPONSE__INIT;
    response.size = size;
    call_reply(call, &response.base);
}

static const struct transfer_ops upload_transfer = {.writable = on_writable, .done = on_upload_done};

static void fail_upload(struct call *call, const struct err *err) {
    struct transfer *transfer = call_state(call);
    if (transfer)
        transfer_abandon(transfer);
    call_fail(call, err);
}

static const struct call_ops upload_ops;

static void start_upload(struct call *call, const Sandlot__V1__UploadTarget *target) {
    struct sandbox *sandbox = find_leased_sandbox(call, "");
    struct transfer *transfer;
    struct err err = {0};
    if (!sandbox)
        return;
    if (transfer_upload(sandbox, target, &upload_transfer, call, &transfer, &err) < 0)
        call_fail(call, &err);
    else
        call_set_ops(call, &upload_ops, transfer);
}

static void on_upload_message(struct call *call, const ProtobufCMessage *message) {
    const Sandlot__V1__UploadRequest *request = (const void *)message;
    struct transfer *transfer = call_state(call);
    struct err err = {0};
    if (!request && transfer) {
        transfer_commit(transfer);
        return;
    }
    bool is_target = request && request->payload_case == SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_TARGET;
    bool is_chunk = request && request->payload_case == SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_CHUNK;
    if (!transfer && is_target) {
        start_upload(call, request->target);
        return;
    }
    if (!transfer || !is_chunk)
        err_violation(&err, REASON(INVALID_REQUEST), "payload",
                      "the first message is the target, all others chunks");
    else if (request->chunk.len > CHUNK_MAX)
        err_violation(&err, REASON(INVALID_REQUEST), "chunk", "at most %d bytes", CHUNK_MAX);
    if (err_is_set(&err) || !request)
        fail_upload(call, &err);
    else if (request->chunk.len == 0)
        call_read(call);
    else
        transfer_write(transfer, request->chunk.data, request->chunk.len);
}

static void on_upload_cancelled(struct call *call) {
    struct transfer *transfer = call_state(call);
    if (transfer)
        transfer_abandon(transfer);
}

static const struct call_ops upload_ops = {.message = on_upload_message, .cancelled = on_upload_cancelled};

void handle_upload(struct call *call) {
    call_set_ops(call, &upload_ops, NULL);
    call_read(call);
}

/* ---- Download ---- */

static void on_received(void *arg, const Sandlot__V1__FileInfo *info, const uint8_t *bytes, size_t len) {
    Sandlot__V1__DownloadResponse response = SANDLOT__V1__DOWNLOAD_RESPONSE__INIT;
    if (info) {
        response.payload_case = SANDLOT__V1__DOWNLOAD_RESPONSE__PAYLOAD_INFO;
        response.info = (Sandlot__V1__FileInfo *)(uintptr_t)info;
    } else {
        response.payload_case = SANDLOT__V1__DOWNLOAD_RESPONSE__PAYLOAD_CHUNK;
        response.chunk.data = (uint8_t *)(uintptr_t)bytes;
        response.chunk.len = len;
    }
    call_send(arg, &response.base);
}

static void on_download_done(void *arg, uint64_t size, const struct err *err) {
    (void)size;
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_finish(call);
}

static void on_download_sent(struct call *call) {
    transfer_resume(call_state(call));
}

static void on_download_cancelled(struct call *call) {
    transfer_abandon(call_state(call));
}

static const struct transfer_ops download_transfer = {.received = on_received, .done = on_download_done};
static const struct call_ops download_ops = {.sent = on_download_sent, .cancelled = on_download_cancelled};

void handle_download(struct call *call) {
    const Sandlot__V1__DownloadRequest *request = (const void *)call_request(call);
    struct sandbox *sandbox = find_leased_sandbox(call, "");
    struct transfer *transfer;
    struct err err = {0};
    if (!sandbox)
        return;
    if (transfer_download(sandbox, request, &download_transfer, call, &transfer, &err) < 0)
        call_fail(call, &err);
    else
        call_set_ops(call, &download_ops, transfer);
}
