package crashpoint

// CallPoints lists the steps of a call of a function, of its provider ("call-" and "function-") and of its
// caller.
var CallPoints = []Point{
	{"function-registered", "the broker lists a provider, which takes no calls yet"},
	{"call-sent", "a request is published, its caller does not wait yet"},
	{"call-begun", "the claim says that the function runs, and it does not yet"},
	{"call-ran", "the function has returned, nothing of it is sent"},
	{"call-replied", "the reply is published, the claim is not done"},
	{"part-sent", "a part is published, and no more of its call"},
	{"call-done", "the claim is done, a caller that waits for room was not rung"},
	{"call-cancelled", "the slot says that the call is wanted no more, its provider was not rung"},
}
