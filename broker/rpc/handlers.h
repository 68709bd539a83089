/* The handlers of the method table: decode, act, reply. */
#pragma once

struct call;

/* handle_sandbox.c */
void handle_create_sandbox(struct call *call);
void handle_get_sandbox(struct call *call);
void handle_list_sandboxes(struct call *call);
void handle_destroy_sandbox(struct call *call);
/* handle_lease.c */
void handle_serialize(struct call *call);
void handle_connect(struct call *call);
void handle_release(struct call *call);
void handle_list_leases(struct call *call);
void handle_revoke_lease(struct call *call);
/* handle_exec.c */
void handle_exec(struct call *call);
/* handle_file.c */
void handle_upload(struct call *call);
void handle_download(struct call *call);
/* handle_broker.c */
void handle_get_broker_info(struct call *call);
/* health.c */
void handle_health_check(struct call *call);
void handle_health_watch(struct call *call);
/* reflection.c */
void handle_reflection(struct call *call);
