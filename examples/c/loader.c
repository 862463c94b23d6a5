// A loader in C: fills batches in shared memory and puts them on a queue.
// The consumer beside it, in Go, takes them without a copy.

#include <baton.h>
#include <stdio.h>
#include <stdlib.h>

static void check(baton_status status) {
	if (status != BATON_OK) {
		fprintf(stderr, "loader: %s: %s\n", baton_status_name(status), baton_last_error());
		exit(1);
	}
}

int main(void) {
	// region produce
	baton_session *session;
	baton_queue *queue;
	check(baton_connect(NULL, &session)); // starts the user's broker if none runs
	check(baton_queue_open(session, "c/batches", NULL, &queue));
	for (int i = 0; i < 3; i++) {
		const DLDataType float32 = {2, 32, 1};
		const int64_t shape[] = {2, 3};
		DLManagedTensorVersioned *batch;
		check(baton_alloc(session, float32, 2, shape, &batch));
		float *x = batch->dl_tensor.data; // the shared memory itself
		for (int k = 0; k < 6; k++)
			x[k] = (float)(10 * i + k);
		char meta[32];
		snprintf(meta, sizeof meta, "{\"batch\":%d}", i);
		const baton_item item = {.tensor = batch};
		baton_payload value = BATON_PAYLOAD_INIT;
		value.items = &item;
		value.count = 1;
		value.meta = meta;
		check(baton_queue_put(queue, &value, BATON_FOREVER));
		baton_tensor_release(batch); // the queue holds it now
	}
	// endregion
	const baton_payload nothing = BATON_PAYLOAD_INIT;
	check(baton_queue_put(queue, &nothing, BATON_FOREVER)); // an item without tensors: no more
	baton_queue_release(queue);
	baton_session_release(session);
	return 0;
}
