/*
 * /usr/bin/python3 of the notebook image: becomes the Python of a virtual environment or of a home.
 *
 * The image has two Pythons: NEWEST, and OLDER, which was the only one before. A virtual environment may link to
 * /usr/bin/python3, and says in pyvenv.cfg which version made it. Where that version is not in the image, and in
 * everything else, the version runs that the home's owner chose with use-python. If the owner chose none, OLDER runs if
 * the home has packages for OLDER alone, and otherwise NEWEST.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRAM "/usr/bin/python"

/* take copies a version of the form 3.N from the beginning of text, if there is such a Python. */
static bool take(const char *text, char version[8])
{
	char found[8], path[sizeof PROGRAM + 8];
	size_t n = strspn(text, ".0123456789");
	const char *patch;

	if (strncmp(text, "3.", 2) != 0)
		return false;
	if ((patch = memchr(text + 2, '.', n - 2)) != NULL)
		n = patch - text;
	if (n < 3 || n >= sizeof found)
		return false;
	memcpy(found, text, n);
	found[n] = '\0';
	snprintf(path, sizeof path, PROGRAM "%s", found);
	if (access(path, X_OK) != 0)
		return false;
	memcpy(version, found, sizeof found);
	return true;
}

/* is_file reports whether path leads to a regular file: a pipe would keep whoever opens it waiting. */
static bool is_file(const char *path)
{
	struct stat about;

	return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

/* configured reads the version in a pyvenv.cfg: "version" as venv writes it, "version_info" as virtualenv and uv do. */
static bool configured(const char *path, char version[8])
{
	char line[1024], key[32];
	bool found = false;
	int end;
	FILE *file = fopen(path, "re");

	if (file == NULL)
		return false;
	while (!found && fgets(line, sizeof line, file) != NULL) {
		end = 0;
		if (sscanf(line, " %31[a-z_] = %n", key, &end) != 1 || end == 0)
			continue;
		if (strcmp(key, "version") == 0 || strcmp(key, "version_info") == 0)
			found = take(line + end, version);
	}
	fclose(file);
	return found;
}

/* called is the path by which this program was called, found on PATH where it has no slash, as Python finds its own. */
static bool called(const char *name, char path[PATH_MAX])
{
	const char *dir = getenv("PATH"), *end;

	if (strchr(name, '/') != NULL)
		return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
	for (; dir != NULL; dir = *end != '\0' ? end + 1 : NULL) {
		end = strchrnul(dir, ':');
		if (snprintf(path, PATH_MAX, "%.*s/%s", end == dir ? 1 : (int)(end - dir), end == dir ? "." : dir, name) < PATH_MAX &&
		    is_file(path) && access(path, X_OK) == 0)
			return true;
	}
	return false;
}

/* of_venv reports whether this program is in a virtual environment, and finds the version of that if the image has it. */
static bool of_venv(const char *name, char version[8], bool *found)
{
	char path[PATH_MAX], file[PATH_MAX + 32];
	char *slash;

	*found = false;
	if (!called(name, path) || (slash = strrchr(path, '/')) == NULL)
		return false;
	*slash = '\0';
	snprintf(file, sizeof file, "%s/pyvenv.cfg", path);
	if (!is_file(file))
		snprintf(file, sizeof file, "%s/../pyvenv.cfg", path);
	if (!is_file(file))
		return false;
	*found = configured(file, version);
	return true;
}

/* has_packages reports whether a home has packages for a version. */
static bool has_packages(const char *home, const char *version)
{
	char path[PATH_MAX];
	struct dirent *entry;
	bool found = false;
	DIR *dir;

	if (snprintf(path, sizeof path, "%s/.local/lib/python%s/site-packages", home, version) >= (int)sizeof path)
		return false;
	if ((dir = opendir(path)) == NULL)
		return false;
	while (!found && (entry = readdir(dir)) != NULL)
		found = entry->d_name[0] != '.' && strcmp(entry->d_name, "__pycache__") != 0;
	closedir(dir);
	return found;
}

/* of_home finds the version that the owner of the home chose, or has packages for. */
static bool of_home(char version[8])
{
	char path[PATH_MAX], line[16] = "";
	const char *home = getenv("HOME");
	struct passwd *user;
	FILE *file;

	if (home == NULL && (user = getpwuid(getuid())) != NULL)
		home = user->pw_dir;
	if (home == NULL || home[0] != '/')
		return false;
	if (snprintf(path, sizeof path, "%s/.config/gpulab/python", home) >= (int)sizeof path)
		return false;
	if (is_file(path) && (file = fopen(path, "re")) != NULL) {
		if (fgets(line, sizeof line, file) == NULL)
			line[0] = '\0';
		fclose(file);
		if (take(line, version))
			return true;
	}
	return has_packages(home, OLDER) && !has_packages(home, NEWEST) && take(OLDER, version);
}

int main(int argc, char **argv)
{
	char version[8] = NEWEST, path[sizeof PROGRAM + 8];
	bool venv, found;

	if (argc < 1)
		return 127;
	venv = of_venv(argv[0], version, &found);
	if (!found)
		of_home(version);
	snprintf(path, sizeof path, PROGRAM "%s", version);
	/* What it starts as sys.executable is then the same Python, whatever somebody chooses meanwhile. */
	if (!venv)
		argv[0] = path;
	execv(path, argv);
	fprintf(stderr, "python3: %s: %s\n", path, strerror(errno));
	return 127;
}
