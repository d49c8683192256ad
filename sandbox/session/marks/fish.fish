# Marks for fish. The shell reads this file once, after the user's configuration, from a pipe. The
# nonce is only in a function.
set -g __sbx_n 0 # number of the prompt
set -g __sbx_w 0 # number of our fish_prompt
set -g __sbx_i # number of the last run
set -g __sbx_r # more fields for the start mark, set for a run

function __sbx_p
    printf '\e]7337;%s;@NONCE@;%s%s\a' $argv[1] $__sbx_n "$argv[2]"
end

# On ^C, fish prints the old prompt first. Start a new prompt and redraw it.
function __sbx_b --on-event fish_cancel
    __sbx_a
    commandline -f repaint
end

function __sbx_a --on-event fish_prompt
    set -l rc $status
    set -g __sbx_n (math $__sbx_n + 1)
    __sbx_p A ";"(math $rc % 256)";0;$PWD;@NONCE@" >/dev/tty
    # Wrap the current prompt, which another program may have set, such as a virtual environment.
    # That one may call an earlier wrapper of ours, which prints no mark.
    if not string match -q "*__sbx_f$__sbx_w;*" -- (functions fish_prompt)
        set -g __sbx_w (math $__sbx_w + 1)
        functions -q fish_prompt; or function fish_prompt; end
        functions -c fish_prompt __sbx_f$__sbx_w
        eval "function fish_prompt; __sbx_f$__sbx_w; test \$__sbx_w = $__sbx_w; and __sbx_p B; end"
    end
end

function __sbx_c --on-event fish_preexec
    __sbx_p C "$__sbx_r" >/dev/tty
end

function __sbx_d --on-event fish_postexec
    set -l rc $status
    set -g __sbx_r
    __sbx_p D ";"(math $rc % 256) >/dev/tty
end

# Enter: if the line is incomplete, fish waits for more.
function __sbx_e
    commandline --is-valid
    test $status = 2; and not commandline -P; and not commandline -S; and __sbx_p E >/dev/tty
    commandline -f execute
end

# Run: the key was typed. After two spaces, fish expands no abbreviation.
function __sbx_k
    test -s @COMMANDS@; or return
    read -zl t <@COMMANDS@
    set -l i (string match -r '^#sbx (\d+)' -- $t)
    test "$i[2]" -a "$i[2]" != "$__sbx_i"; or return
    set -g __sbx_i $i[2]
    __sbx_p C >/dev/tty
    set t (string replace -r '^.*\n' '' -- $t | string collect)
    commandline -r -- $t
    if not commandline --is-valid
        commandline -r ''
        __sbx_p X >/dev/tty
        commandline -f repaint
        return
    end
    commandline -r -- $t'  '
    set -g __sbx_r ";run;$__sbx_i"
    commandline -f execute
end

for __sbx_m in default insert visual replace replace_one
    bind -M $__sbx_m @RUNKEY@ __sbx_k
    for __sbx_o in \r \n
        bind --user -M $__sbx_m $__sbx_o >/dev/null 2>&1; or bind -M $__sbx_m $__sbx_o __sbx_e
    end
end
set -e __sbx_m
set -e __sbx_o
true
