// Package settings is the configuration of a broker process: where each setting
// may come from, in which order, and whether the whole makes sense.
//
// A setting is defined once, as a flag. Its key in the configuration file is the
// flag's name, its environment variable BATON_ and that name in capitals with _
// for -. The order is flag, environment, file, default; [Settings.Source] tells
// which one won. A file is TOML, with keys at the top level only:
//
//	memory    = "8GiB"
//	allow-uid = [1000, 1001]
//	nats      = "nats://10.0.0.1:4222"
//
// # Ownership
//
// [Define] ties a Settings to a flag set, which writes into it until [Settings.Load]
// has returned; afterwards it is plain data.
//
// # Concurrency
//
// One goroutine defines and loads; the result may be read by any.
//
// # Hostile input
//
// Environment and file are the user's own. Values are parsed without trusting
// them: sizes that overflow, modes, addresses and unknown keys are refused with a
// *[Error] that names the place to correct. Passwords are never printed.
//
// # Death
//
// Nothing is kept outside the process.
package settings
