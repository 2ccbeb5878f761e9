#!/usr/bin/env python3
"""Compiles a CUDA file for the emulator: kernels.py OUTPUT DEPFILE -- COMPILER ARGUMENT...

The compiler's arguments name the file and are those of a preprocessor run. What comes out is
compiled after a table of its kernels was added: their names and types exist only after macros."""
import os
import re
import subprocess
import sys

KERNEL = re.compile(r'extern\s+"C"\s+__attribute__\(\(__used__\)\)\s+void\s+'
                    r'__launch_bounds__\((?P<bounds>[^;{]*?)\)\s+(?P<name>[A-Za-z_]\w*)\s*\(')


def main():
    output, depfile, separator, *command = sys.argv[1:]
    assert separator == '--'
    run = subprocess.run(command + ['-E', '-MD', '-MF', depfile, '-MT', output],
                         stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(run.returncode)
    text = run.stdout
    rows = []
    # A function is told from its declaration by what follows; kernels are only ever defined.
    for match in KERNEL.finditer(text):
        rows.append('    {(const void *)&%s, "%s", gpu_bound(%s), gpu_blocks(%s),\n'
                    '     gpu_caller<&%s>::call},\n' % (
                        match['name'], match['name'], match['bounds'], match['bounds'],
                        match['name']))
    if not rows:
        sys.exit('no kernel in ' + ' '.join(command))
    text = KERNEL.sub(r'extern "C" void \g<name>(', text)
    text += '\nstatic const gpu_kernel gpu_kernels[] = {\n' + ''.join(rows) + '};\n'
    text += ('static gpu_unit gpu_own_unit = {gpu_kernels, %d, nullptr};\n'
             '__attribute__((constructor)) static void gpu_unit_begin()\n'
             '{\n    gpu_unit_join(&gpu_own_unit);\n}\n' % len(rows))
    source = os.path.splitext(output)[0] + '.ii'
    with open(source, 'w') as file:
        file.write(text)
    # The flags without those of the preprocessor and the file.
    flags = [a for a in command if a.startswith(('-f', '-O', '-W', '-m', '-std', '-g'))]
    status = subprocess.run([command[0], *flags, '-c', source, '-o', output]).returncode
    os.remove(source)
    sys.exit(status)


main()
