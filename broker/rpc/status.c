#include "broker/rpc/status.h"

#include <stdlib.h>
#include <string.h>

#include "common/xalloc.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define DETAILS_MAX 3
#define TYPE_PREFIX "type.googleapis.com/"
#define REASON_PREFIX "ERROR_REASON_"

struct details {
    Google__Protobuf__Any any[DETAILS_MAX];
    Google__Protobuf__Any *list[DETAILS_MAX];
    size_t count;
};

static void add(struct details *details, const ProtobufCMessage *message) {
    Google__Protobuf__Any *any = &details->any[details->count];
    google__protobuf__any__init(any);
    any->type_url = xasprintf(TYPE_PREFIX "%s", message->descriptor->name);
    any->value.len = protobuf_c_message_get_packed_size(message);
    any->value.data = xcalloc(1, any->value.len);
    protobuf_c_message_pack(message, any->value.data);
    details->list[details->count++] = any;
}

static const char *reason_name(int reason) {
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&sandlot__v1__error_reason__descriptor, reason);
    return value ? value->name + sizeof REASON_PREFIX - 1 : "INTERNAL";
}

static void add_error_info(struct details *details, const struct err *err) {
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    static char domain[] = "sandlot";
    info.reason = (char *)(uintptr_t)reason_name(
        err->reason ? err->reason : SANDLOT__V1__ERROR_REASON__ERROR_REASON_INTERNAL);
    info.domain = domain;
    add(details, &info.base);
}

static void add_violations(struct details *details, const struct err *err) {
    Google__Rpc__BadRequest__FieldViolation violations[ERR_VIOLATIONS_MAX];
    Google__Rpc__BadRequest__FieldViolation *list[ERR_VIOLATIONS_MAX];
    Google__Rpc__BadRequest bad = GOOGLE__RPC__BAD_REQUEST__INIT;
    for (unsigned i = 0; i < err->violation_count; i++) {
        google__rpc__bad_request__field_violation__init(&violations[i]);
        violations[i].field = (char *)(uintptr_t)err->violations[i].field;
        violations[i].description = (char *)(uintptr_t)err->violations[i].description;
        list[i] = &violations[i];
    }
    bad.n_field_violations = err->violation_count;
    bad.field_violations = list;
    add(details, &bad.base);
}

static void add_retry(struct details *details, const struct err *err) {
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    Google__Rpc__RetryInfo retry = GOOGLE__RPC__RETRY_INFO__INIT;
    delay.seconds = err->retry_delay_ms / 1000;
    delay.nanos = (int32_t)(err->retry_delay_ms % 1000) * 1000000;
    retry.retry_delay = &delay;
    add(details, &retry.base);
}

grpc_slice status_details(const struct err *err) {
    struct details details = {.count = 0};
    Google__Rpc__Status status = GOOGLE__RPC__STATUS__INIT;
    add_error_info(&details, err);
    if (err->violation_count)
        add_violations(&details, err);
    if (err->retry_delay_ms)
        add_retry(&details, err);
    status.code = (int32_t)err->code;
    status.message = (char *)(uintptr_t)err->text;
    status.n_details = details.count;
    status.details = details.list;
    grpc_slice slice = grpc_slice_malloc(google__rpc__status__get_packed_size(&status));
    google__rpc__status__pack(&status, GRPC_SLICE_START_PTR(slice));
    for (size_t i = 0; i < details.count; i++) {
        free(details.any[i].type_url);
        free(details.any[i].value.data);
    }
    return slice;
}
