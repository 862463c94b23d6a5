/* Memory of the machine's GPUs: a file for each allocation, with a shared lock
 * that belongs to its open file. Descriptors on their way in sockets, mappings and
 * all duplicates share that open file, so the lock is there exactly as long as
 * any process can reach the memory, however the others ended. Memory whose lock
 * is gone is freed by the process that looks next. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "standin.h"

/* All looks at a GPU's files take turns. */
static int turn(int gpu)
{
	char path[600];
	snprintf(path, sizeof path, "%s/gpu%d.lock", standin_dir, gpu);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	while (fd >= 0 && flock(fd, LOCK_EX) < 0)
		if (errno != EINTR) {
			close(fd);
			return -1;
		}
	return fd;
}

/* Frees what no process has and sums the rest. The caller has the turn. */
static size_t sweep(int gpu)
{
	size_t used = 0;
	DIR *d = opendir(gpus[gpu].dir);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		if (strncmp(e->d_name, "block-", 6) || strchr(e->d_name, '.'))
			continue;
		int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
		struct stat st;
		if (fd < 0)
			continue;
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(d), e->d_name, 0);
		else if (fstat(fd, &st) == 0)
			used += (size_t)st.st_size;
		close(fd);
	}
	if (d)
		closedir(d);
	return used;
}

size_t store_used(int gpu)
{
	int t = turn(gpu);
	size_t used = sweep(gpu);
	close(t);
	return used;
}

int store_create(int gpu, size_t size, bool named, char path[600])
{
	static atomic_uint next;
	int t = turn(gpu), fd = -1, err = ENOMEM;
	if (t < 0)
		return -1;
	if (size <= gpus[gpu].total && sweep(gpu) <= gpus[gpu].total - size) {
		snprintf(path, 600, "%s/block-%d-%u%s", gpus[gpu].dir, getpid(), atomic_fetch_add(&next, 1), named ? "-legacy" : "");
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd >= 0 && (flock(fd, LOCK_SH) < 0 || ftruncate(fd, (off_t)size) < 0)) {
			err = errno;
			unlink(path);
			close(fd);
			fd = -1;
		}
	}
	close(t);
	if (fd < 0)
		errno = err;
	return fd;
}
