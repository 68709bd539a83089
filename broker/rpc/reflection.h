/* Server reflection v1 and v1alpha over the descriptors compiled into the program. Immutable once
 * made, so it is answered on the pump's thread. */
#pragma once

void reflection_init(void); /* before the server starts */
void reflection_fini(void);
