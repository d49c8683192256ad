# Saves what is on no branch in the repository of a sandbox, and lists its refs.
#
#   sh -c SCRIPT sh DIR
#
# It makes a commit of the uncommitted changes of each work tree. It prints the current branch, the
# branches, and what is on no branch as refs below refs/sandboxd/saved: those commits, commits of a
# HEAD without a branch, and stashes. What it cannot save it prints as lost, and what it does not
# fetch as skipped. The last line is "end".
#
# It sets no ref and uses an index of its own: several of them may run at once, and a lock that a
# killed one leaves behind stops no other. The same changes give the same commit.
set -u
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
command -v git >/dev/null || exit 71
cd -- "$1" 2>/dev/null || exit 74
g() {
	git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 -c core.safecrlf=false \
		-c core.sparseCheckout=false -c advice.addEmbeddedRepo=false "$@"
}
cdup=$(g rev-parse --show-cdup) || exit 74
[ -z "$cdup" ] || exit 74
g var GIT_COMMITTER_IDENT >/dev/null 2>&1 || {
	GIT_AUTHOR_NAME=sandboxd GIT_AUTHOR_EMAIL=sandboxd@localhost
	GIT_COMMITTER_NAME=sandboxd GIT_COMMITTER_EMAIL=sandboxd@localhost
	export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
}
saved() { echo "ref $2 refs/sandboxd/saved/$1"; }
# at NAME prints the path of a file of git for the current work tree.
at() {
	path=$(g rev-parse --git-path "$1") || return 1
	case $path in /*) ;; *) path=$PWD/$path;; esac
	printf '%s\n' "$path"
}
# common prints the physical path of the repository of the current work tree.
common() { path=$(g rev-parse --git-common-dir) && (cd -- "$path" && pwd -P); }
# detached COMMIT saves a commit that no branch has.
detached() {
	[ -z "$(g for-each-ref --count=1 --contains "$1" refs/heads)" ] || return 0
	saved "detached-$heads" "$1"
	heads=$((heads + 1))
}
stashes=0 heads=0
# wip NAME saves the changes of the current work tree.
wip() {
	head=$(g rev-parse -q --verify 'HEAD^{commit}') || head=
	for file in rebase-merge/autostash rebase-apply/autostash MERGE_AUTOSTASH; do
		file=$(at "$file") && [ -f "$file" ] || continue
		if commit=$(g rev-parse -q --verify "$(cat -- "$file")^{commit}"); then
			saved "stash-$stashes" "$commit"
			stashes=$((stashes + 1))
		else
			echo lost stashes
		fi
	done
	for file in rebase-merge/orig-head rebase-apply/orig-head; do
		file=$(at "$file") && [ -f "$file" ] || continue
		commit=$(g rev-parse -q --verify "$(cat -- "$file")^{commit}") && detached "$commit"
	done
	index=$(at index) && own=$(at "sandboxd-index.$$") || return 1
	rm -f -- "$own" "$own.lock"
	# With its time: git reads a file again that is not older than the index.
	[ ! -f "$index" ] || cp -p -- "$index" "$own" || return 1
	i() { GIT_INDEX_FILE=$own g "$@"; }
	staged=$(i write-tree 2>/dev/null) || staged=
	# The index may say that git shall not look at some files. Those that are there count; those
	# that a sparse checkout left out are no deletions.
	if i ls-files -v | grep -q '^[[:lower:]S]'; then
		i ls-files -z --deleted | i update-index -z --remove --stdin &&
			i ls-files -z | i update-index -z --no-assume-unchanged --stdin &&
			i ls-files -z | i update-index -z --no-skip-worktree --stdin &&
			i ls-files -z --deleted | i update-index -z --skip-worktree --stdin ||
			{ rm -f -- "$own"; return 1; }
	fi
	i add -A --ignore-errors . >/dev/null || echo lost files
	tree=$(i write-tree) || { rm -f -- "$own"; return 1; }
	rm -f -- "$own"
	g ls-tree -r "$tree" | grep '^160000 ' | cut -f2- | sed 's/^/skipped /'
	date='@0 +0000'
	if [ -n "$head" ]; then
		before=$(g rev-parse "$head^{tree}") &&
			date=$(g log -1 --format='@%ct +0000' "$head" --) || return 1
	else
		before=$(g hash-object -t tree /dev/null) || return 1
	fi
	case $staged in "$before" | "$tree") staged=;; esac
	[ "$tree" != "$before" ] || [ -n "$staged" ] || return 0
	commit() { GIT_AUTHOR_DATE=$date GIT_COMMITTER_DATE=$date g commit-tree "$@"; }
	if [ -n "$staged" ]; then # no file has it any more
		staged=$(commit "$staged" ${head:+-p "$head"} -m 'wip: staged changes') || return 1
	fi
	commit=$(commit "$tree" ${head:+-p "$head"} ${staged:+-p "$staged"} \
		-m 'wip: uncommitted changes') || return 1
	saved "$1" "$commit"
}
top=$(pwd -P)
wip wip || echo lost wip
trees=$(g worktree list --porcelain) || echo lost worktrees
# The first is the main one, by the path of its repository, which may be elsewhere.
first= ours=$(common) || exit 74
[ "$(g rev-parse --git-dir)" != "$(g rev-parse --git-common-dir)" ] || first=1d
n=0
while IFS= read -r dir; do
	[ -n "$dir" ] || continue
	[ -e "$dir" ] || { echo "skipped $dir (missing work tree)"; continue; }
	cd -- "$dir" || { echo lost worktree; continue; }
	[ "$(pwd -P)" != "$top" ] || continue
	# The path may be another directory by now, or another repository.
	[ -e .git ] || { echo "skipped $dir (no work tree any more)"; continue; }
	theirs=$(common) || { echo lost worktree; continue; }
	[ "$theirs" = "$ours" ] || { echo "skipped $dir (another repository)"; continue; }
	wip "wip-$n" || echo lost worktree
	n=$((n + 1))
done <<END
$(printf '%s\n' "$trees" | sed -n 's/^worktree //p' | sed "$first")
END
cd -- "$top" || exit 74
for commit in $(printf '%s\n' "$trees" | sed -n 's/^HEAD //p'); do
	case $commit in *[!0]*) detached "$commit";; esac
done
large=$(at lfs/objects)
[ -z "$(ls -A -- "$large" 2>/dev/null)" ] || echo lost files of Git LFS
all=$(g stash list -n 1001 --format=%H) || echo lost stashes
n=0
for commit in $all; do
	[ $n -lt 1000 ] || { echo lost stashes; break; }
	saved "stash-$stashes" "$commit"
	stashes=$((stashes + 1)) n=$((n + 1))
done
echo "head $(g symbolic-ref -q HEAD)"
g for-each-ref --format='ref %(objectname) %(refname)' refs/heads || exit 1
echo end
