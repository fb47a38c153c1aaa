// matrix_host
