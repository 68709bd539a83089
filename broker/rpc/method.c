#include "broker/rpc/method.h"

#include <string.h>

#include "broker/rpc/handlers.h"
#include "common/cleanup.h"
#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "sandlot/v1/broker.pb-c.h"
#include "sandlot/v1/exec.pb-c.h"
#include "sandlot/v1/file.pb-c.h"
#include "sandlot/v1/lease.pb-c.h"
#include "sandlot/v1/sandbox.pb-c.h"

#define NO_LEASE \
    { .lease = false }
#define LEASE(scope) \
    { .lease = true, .least = scope }

static const struct method methods[] = {
    {"/sandlot.v1.SandboxService/CreateSandbox", METHOD_UNARY, 0, NO_LEASE,
     &sandlot__v1__create_sandbox_request__descriptor, handle_create_sandbox},
    {"/sandlot.v1.SandboxService/GetSandbox", METHOD_UNARY, 0, LEASE(SCOPE_OBSERVE),
     &sandlot__v1__get_sandbox_request__descriptor, handle_get_sandbox},
    {"/sandlot.v1.SandboxService/ListSandboxes", METHOD_UNARY, 0, NO_LEASE,
     &sandlot__v1__list_sandboxes_request__descriptor, handle_list_sandboxes},
    {"/sandlot.v1.SandboxService/DestroySandbox", METHOD_UNARY, METHOD_UNWATCHED, LEASE(SCOPE_OWNER),
     &sandlot__v1__destroy_sandbox_request__descriptor, handle_destroy_sandbox},

    {"/sandlot.v1.LeaseService/Serialize", METHOD_UNARY, 0, LEASE(SCOPE_OBSERVE),
     &sandlot__v1__serialize_request__descriptor, handle_serialize},
    {"/sandlot.v1.LeaseService/Connect",
     METHOD_UNARY,
     0,
     {.lease = true, .least = SCOPE_OBSERVE, .takes_serialized = true},
     &sandlot__v1__connect_request__descriptor,
     handle_connect},
    {"/sandlot.v1.LeaseService/Release",
     METHOD_UNARY,
     METHOD_UNWATCHED,
     {.lease = true, .least = SCOPE_OBSERVE, .takes_serialized = true, .takes_ended = true},
     &sandlot__v1__release_request__descriptor,
     handle_release},
    {"/sandlot.v1.LeaseService/ListLeases", METHOD_UNARY, 0, LEASE(SCOPE_OWNER),
     &sandlot__v1__list_leases_request__descriptor, handle_list_leases},
    {"/sandlot.v1.LeaseService/RevokeLease", METHOD_UNARY, METHOD_UNWATCHED, LEASE(SCOPE_OWNER),
     &sandlot__v1__revoke_lease_request__descriptor, handle_revoke_lease},

    {"/sandlot.v1.ExecService/Exec", METHOD_UNARY, 0, LEASE(SCOPE_OPERATE),
     &sandlot__v1__exec_request__descriptor, handle_exec},

    {"/sandlot.v1.FileService/Upload", METHOD_CLIENT_STREAM, 0, LEASE(SCOPE_OPERATE),
     &sandlot__v1__upload_request__descriptor, handle_upload},
    {"/sandlot.v1.FileService/Download", METHOD_SERVER_STREAM, 0, LEASE(SCOPE_OBSERVE),
     &sandlot__v1__download_request__descriptor, handle_download},

    {"/sandlot.v1.BrokerService/GetBrokerInfo", METHOD_UNARY, METHOD_ANYTIME, NO_LEASE,
     &sandlot__v1__get_broker_info_request__descriptor, handle_get_broker_info},

    {"/grpc.health.v1.Health/Check", METHOD_UNARY, METHOD_INLINE | METHOD_ANYTIME | METHOD_ANYBODY, NO_LEASE,
     &grpc__health__v1__health_check_request__descriptor, handle_health_check},
    {"/grpc.health.v1.Health/Watch", METHOD_SERVER_STREAM, METHOD_ANYTIME | METHOD_ANYBODY, NO_LEASE,
     &grpc__health__v1__health_check_request__descriptor, handle_health_watch},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", METHOD_BIDI,
     METHOD_INLINE | METHOD_ANYTIME | METHOD_ANYBODY, NO_LEASE,
     &grpc__reflection__v1__server_reflection_request__descriptor, handle_reflection},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", METHOD_BIDI,
     METHOD_INLINE | METHOD_ANYTIME | METHOD_ANYBODY, NO_LEASE,
     &grpc__reflection__v1alpha__server_reflection_request__descriptor, handle_reflection},
};

const struct method *method_find(const char *path, size_t len) {
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (strlen(methods[i].path) == len && memcmp(methods[i].path, path, len) == 0)
            return &methods[i];
    return NULL;
}
