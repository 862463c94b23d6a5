// Package gpu is memory on a GPU as a process has it: segments that are imported and mapped,
// memory that is lent by the driver's handle, and streams that wait for each other. It loads no
// driver, asks no broker, and counts nothing in refcounts.
package gpu
