package protocol

import "strings"

// DeviceCUDA begins the name of a CUDA device in control messages, before the UUID
// that names it in all processes.
const DeviceCUDA = "cuda:"

// MaxDeviceName bounds the name.
const MaxDeviceName = 47

// CheckDevice tests a device's name: cuda: and the UUID as nvidia-smi shows it. Every refusal has
// CodeInvalid.
func CheckDevice(name string) error {
	uuid, ok := strings.CutPrefix(name, DeviceCUDA)
	for _, c := range []byte(uuid) {
		ok = ok && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if !ok || uuid == "" || len(name) > MaxDeviceName {
		return Errorf(CodeInvalid, "use cuda: and the UUID of the GPU", "%q names no device", shortened(name))
	}
	return nil
}
