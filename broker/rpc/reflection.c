#include "broker/rpc/reflection.h"

#include <stdlib.h>
#include <string.h>

#include "broker/rpc/call.h"
#include "broker/rpc/descriptors.h"
#include "broker/rpc/handlers.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "google/protobuf/descriptor.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define FILES_MAX 64
#define NOT_FOUND 5
#define UNIMPLEMENTED 12

/* The two versions of the protocol differ in their package name only, and so do their generated
 * types: the v1 ones are used for both. */
typedef Grpc__Reflection__V1__ServerReflectionRequest request_type;
typedef Grpc__Reflection__V1__ServerReflectionResponse response_type;

static Google__Protobuf__FileDescriptorSet *set;

void reflection_init(void) {
    size_t len = (size_t)(sandlot_descriptor_set_end - sandlot_descriptor_set);
    set = google__protobuf__file_descriptor_set__unpack(NULL, len, sandlot_descriptor_set);
    if (!set || set->n_file > FILES_MAX)
        abort();
}

void reflection_fini(void) {
    google__protobuf__file_descriptor_set__free_unpacked(set, NULL);
    set = NULL;
}

/* ---- Finding ---- */

static int file_by_name(const char *name) {
    for (size_t i = 0; i < set->n_file; i++)
        if (strcmp(set->file[i]->name, name) == 0)
            return (int)i;
    return -1;
}

/* The rest of symbol after "prefix.", or NULL. */
static const char *below(const char *symbol, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(symbol, prefix, n) == 0 && symbol[n] == '.' ? symbol + n + 1 : NULL;
}

static bool names(const char *symbol, const char *name) {
    return strcmp(symbol, name) == 0 || below(symbol, name);
}

static bool file_has_symbol(const Google__Protobuf__FileDescriptorProto *file, const char *symbol) {
    const char *local = below(symbol, file->package);
    if (!local)
        return false;
    for (size_t i = 0; i < file->n_service; i++)
        if (names(local, file->service[i]->name))
            return true;
    for (size_t i = 0; i < file->n_message_type; i++)
        if (names(local, file->message_type[i]->name))
            return true;
    for (size_t i = 0; i < file->n_enum_type; i++)
        if (names(local, file->enum_type[i]->name))
            return true;
    return false;
}

static int file_by_symbol(const char *symbol) {
    for (size_t i = 0; i < set->n_file; i++)
        if (file_has_symbol(set->file[i], symbol))
            return (int)i;
    return -1;
}

/* ---- Answering ---- */

static void answer_file(struct call *call, response_type *response, int index) {
    Grpc__Reflection__V1__FileDescriptorResponse files = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    bool wanted[FILES_MAX] = {false};
    ProtobufCBinaryData list[FILES_MAX];
    wanted[index] = true;
    /* The file first, then all it imports. Dependencies stand earlier in the set: one pass back. */
    for (int i = index; i >= 0; i--) {
        if (!wanted[i])
            continue;
        const Google__Protobuf__FileDescriptorProto *file = set->file[i];
        ProtobufCBinaryData *bytes = &list[files.n_file_descriptor_proto++];
        bytes->len = google__protobuf__file_descriptor_proto__get_packed_size(file);
        bytes->data = xcalloc(1, bytes->len);
        google__protobuf__file_descriptor_proto__pack(file, bytes->data);
        for (size_t k = 0; k < file->n_dependency; k++) {
            int dependency = file_by_name(file->dependency[k]);
            if (dependency >= 0)
                wanted[dependency] = true;
        }
    }
    files.file_descriptor_proto = list;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &files;
    call_send(call, &response->base);
    for (size_t i = 0; i < files.n_file_descriptor_proto; i++)
        free(list[i].data);
}

static void answer_error(struct call *call, response_type *response, int code, const char *text) {
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.error_message = (char *)(uintptr_t)text;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &error;
    call_send(call, &response->base);
}

static void answer_found(struct call *call, response_type *response, int index, const char *what) {
    if (index < 0)
        answer_error(call, response, NOT_FOUND, what);
    else
        answer_file(call, response, index);
}

static void answer_services(struct call *call, response_type *response) {
    Grpc__Reflection__V1__ListServiceResponse list = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    Grpc__Reflection__V1__ServiceResponse services[FILES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[FILES_MAX];
    memset(services, 0, sizeof services);
    for (size_t i = 0; i < set->n_file; i++)
        for (size_t k = 0; k < set->file[i]->n_service && list.n_service < FILES_MAX; k++) {
            Grpc__Reflection__V1__ServiceResponse *service = &services[list.n_service];
            grpc__reflection__v1__service_response__init(service);
            service->name = xasprintf("%s.%s", set->file[i]->package, set->file[i]->service[k]->name);
            pointers[list.n_service++] = service;
        }
    list.service = list.n_service ? pointers : NULL;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &list;
    call_send(call, &response->base);
    for (size_t i = 0; i < list.n_service; i++)
        free(services[i].name);
}

static void on_message(struct call *call, const ProtobufCMessage *message) {
    if (!message) {
        call_finish(call);
        return;
    }
    request_type *request = (request_type *)(uintptr_t)message;
    response_type response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    /* v1alpha's message has the same layout; its own descriptor pointer must not be packed as v1's. */
    request_type original = *request;
    original.base.descriptor = &grpc__reflection__v1__server_reflection_request__descriptor;
    response.valid_host = request->host;
    response.original_request = &original;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_found(call, &response, file_by_name(request->file_by_filename), "no such file");
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_found(call, &response, file_by_symbol(request->file_containing_symbol), "no such symbol");
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(call, &response);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        original.message_request_case = 0;
        answer_error(call, &response, NOT_FOUND, "there are no extensions here");
        break;
    default: answer_error(call, &response, UNIMPLEMENTED, "unknown request"); break;
    }
}

static void on_sent(struct call *call) {
    call_read(call);
}

static const struct call_ops reflection_ops = {.message = on_message, .sent = on_sent};

void handle_reflection(struct call *call) {
    call_set_ops(call, &reflection_ops, NULL);
    call_read(call);
}
